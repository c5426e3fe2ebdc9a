"""ddp.Elastic: a rank alone, and a job that loses a rank and gets a new one. It has the bits of one process in the end."""
import gc
import pathlib
import subprocess
import sys
import time
import unittest
import weakref
import zlib

import numpy as np

import ddp
import support

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from slack import SLACK  # noqa: E402  (tests/support)

STEPS, SAMPLES, PARAMS, SIZE = 200, 12, 3, 500


def gradient(step, param, samples):
    """The sum over samples of integers: the same, however the samples are divided."""
    i = np.arange(SIZE, dtype=np.float32)
    return sum(((step * 31 + sample * 17 + param * 7 + i) % 23 - 11 for sample in samples), np.zeros(SIZE, np.float32))


def update(values, momenta, gradients):
    for value, momentum, grad in zip(values, momenta, gradients):
        momentum *= np.float32(0.75)
        momentum += grad
        value -= np.float32(0.01) * momentum


def zeros():
    return [np.zeros(SIZE, np.float32) for _ in range(PARAMS)]


def checksum(values, momenta):
    return zlib.crc32(b"".join(array.tobytes() for array in values + momenta))


def reference(with_momenta=True):
    values, momenta = zeros(), zeros()
    for step in range(STEPS):
        update(values, momenta, [gradient(step, p, range(SAMPLES)) for p in range(PARAMS)])
    return f"done {STEPS} {checksum(values, momenta if with_momenta else [])}"


def begun(job, context, gradients, take_state=lambda: None):
    """The steps that all ranks have done: the caller applies each. take_state() comes after each change of the roster."""
    while True:
        now = job.begin()
        if now.changed:
            print(f"roster {now.roster} step {now.step} rank {now.rank} of {now.world_size}", flush=True)
            try:
                take_state()
            except ddp.Error:
                continue
        if now.step >= STEPS:
            return
        for p in reversed(range(PARAMS)):
            gradients[p][:] = gradient(now.step, p, range(now.rank, SAMPLES, now.world_size))
        # The second half gives a rank that is started again time to come.
        time.sleep(0.2 if now.step >= STEPS // 2 and now.world_size < 3 else 0.005)
        try:
            for p in reversed(range(PARAMS)):
                context.wait_value(p)
                context.grad_ready(p)
            context.finalize()
        except ddp.Error:
            continue  # a rank was lost: begin() decides
        yield now


def train(uri, backend):
    """A rank."""
    values, gradients, momenta = zeros(), zeros(), zeros()
    with ddp.Elastic(uri, backend=backend, timeout=5 * SLACK, max_world=3, settle=3 * SLACK) as job:
        with ddp.Context(job.group, reduction="sum") as context:
            for p in range(PARAMS):
                context.register(f"layer{p}", values[p], gradients[p])
            context.commit()
            job.add_context(context)
            for p in range(PARAMS):
                job.add_state(f"momentum{p}", momenta[p])
            for _ in begun(job, context, gradients):
                update(values, momenta, gradients)
                job.commit()
    print(f"done {STEPS} {checksum(values, momenta)}", flush=True)


def train_shards(uri, backend):
    """A rank that has the momenta of its own pieces only."""
    values, gradients, pieces, momenta = zeros(), zeros(), [], []
    with ddp.Elastic(uri, backend=backend, timeout=5 * SLACK, max_world=3, settle=3 * SLACK) as job:
        with ddp.Context(job.group, reduction="sum", shard=True) as context:
            for p in range(PARAMS):
                context.register(f"layer{p}", values[p], gradients[p])
            context.commit()
            job.add_context(context)

            def take_state():
                pieces[:] = context.pieces()
                momenta[:] = [np.zeros(piece.count, np.float32) for piece in pieces]
                if not job.recall_shards(context, {"m": momenta}):
                    job.keep_shards(context, {"m": momenta}, 0)

            for now in begun(job, context, gradients, take_state):
                try:
                    update([np.asarray(piece.value) for piece in pieces], momenta, [np.asarray(piece.gradient) for piece in pieces])
                    context.publish()
                    job.commit()
                    if now.step + 1 < STEPS:
                        job.keep_shards(context, {"m": momenta}, now.step + 1)
                except ddp.Error:
                    continue
            for p in range(PARAMS):
                context.wait_value(p)
    print(f"done {STEPS} {checksum(values, [])}", flush=True)


class Alone(unittest.TestCase):
    def setUp(self):
        self.store = ddp.Store("tcp://127.0.0.1:0", server=True)
        self.addCleanup(self.store.close)

    def job(self):
        job = ddp.Elastic(store=self.store, timeout=20, max_world=1)
        self.addCleanup(job.close)
        return job

    def context(self, job, size=3):
        ctx = ddp.Context(job.group)
        ctx.register("w", np.zeros(size, np.float32), np.ones(size, np.float32))
        ctx.commit()
        job.add_context(ctx)
        return ctx

    def test_steps(self):
        job = self.job()
        ctx = self.context(job)
        averager = ddp.Averager(ctx, 5)
        with support.raises(self, ddp.InvalidStateError, "outer optimizer"):
            job.add_averager(averager)
        averager.set_outer()
        job.add_averager(averager)
        job.add_state("counter", np.zeros(2, np.uint64))
        job.add_state("bytes", bytearray(5))
        job.add_state("factor", np.zeros((2, 3), np.float32))
        job.set_step(7)
        for step in range(7, 10):
            now = job.begin()
            self.assertEqual(now, ddp.ElasticStep(step, 1, 0, 1, step == 7, int(step == 7), 0, False, now.fence))
            self.assertGreater(now.fence, 0)
            self.assertEqual((job.group.rank, job.group.world_size), (0, 1))
            ctx.grad_ready(0)
            ctx.finalize()
            averager.step()
            job.commit()
            job.confirm_member()
        job.announce_leave()
        while not job.begin().leaving:
            averager.step()
            job.commit()
        self.assertEqual(averager.steps % 5, 1, "right after an outer step")
        job.leave()
        self.assertEqual(job.group.world_size, 1)

    def test_errors(self):
        job = self.job()
        with self.assertRaises(ddp.InvalidStateError):
            job.commit()
        with self.assertRaises(ddp.InvalidStateError):
            job.confirm_member()
        with self.assertRaises(ddp.InvalidStateError):
            job.add_context(ddp.Context(job.group))
        job.add_state("a", np.zeros(3, np.float32))
        with support.raises(self, ddp.AlreadyExistsError, "'a'"):
            job.add_state("a", np.zeros(3, np.float32))
        for wrong in (b"constant", np.zeros((4, 4), np.float32)[:, 1], 3):
            with support.raises(self, (TypeError, ValueError), "state"):
                job.add_state("b", wrong)
        with self.assertRaises(ddp.InvalidArgumentError):
            job.set_step(-1)
        with self.assertRaises(ddp.InvalidArgumentError):
            ddp.Elastic(store=self.store, min_world=-1)
        with self.assertRaises(ValueError):
            ddp.Elastic(store=self.store, settle=-1)
        job.begin()
        with self.assertRaises(ddp.InvalidStateError):
            job.add_state("late", np.zeros(3, np.float32))

    def test_shards(self):
        job = self.job()
        ctx = ddp.Context(job.group, shard=True)
        self.addCleanup(ctx.close)
        value, m = np.zeros(3, np.float32), np.zeros(3, np.float32)
        ctx.register("w", value, np.zeros(3, np.float32))
        ctx.commit()
        job.add_context(ctx)
        with support.raises(self, ddp.InvalidStateError, "has not begun"):
            job.keep_shards(ctx, {"m": [m]}, 0)
        job.begin()
        self.assertFalse(job.recall_shards(ctx, {"m": [m]}))
        with self.assertRaisesRegex(ValueError, "where: 'disk' is unknown; there are neighbour, checkpoint"):
            job.keep_shards(ctx, {"m": [m]}, 0, where="disk")
        with self.assertRaisesRegex(ValueError, "m: there are 0 arrays"):
            job.keep_shards(ctx, {"m": []}, 0)
        value[:], m[:] = 5, 7
        job.keep_shards(ctx, {"m": [m], "t": {"w": np.array([4])}}, 4)
        with support.raises(self, ddp.InvalidStateError, "Elastic.commit"):
            job.keep_shards(ctx, {"m": [m]}, 4)
        value[:], m[:] = 0, 0
        job.group.abort("as a loss would")
        now = job.begin()
        self.assertEqual((now.step, now.changed), (4, True))
        t = np.zeros(1, np.int64)
        self.assertTrue(job.recall_shards(ctx, {"m": {"w": m}, "t": {"w": t}}))
        self.assertEqual([list(array) for array in (value, m, t)], [[5] * 3, [7] * 3, [4]])
        job.commit()
        ctx.close()
        with support.raises(self, ddp.InvalidStateError, "closed"):
            job.keep_shards(ctx, {}, 5)

    def test_closed_averager(self):
        job = self.job()
        averager = ddp.Averager(self.context(job), 5)
        averager.set_outer()
        job.add_averager(averager)
        job.begin()
        averager.close()
        for call in (job.begin, job.commit, job.leave):
            with support.raises(self, ddp.InvalidStateError, "the averager is closed"):
                call()

    def test_closed(self):
        job = self.job()
        ctx = self.context(job)
        group = job.group
        job.begin()
        ctx.close()
        for call in (job.begin, job.commit, job.leave):
            with support.raises(self, ddp.InvalidStateError, "closed"):
                call()
        job.close()
        job.close()
        for misuse in (job.begin, lambda: job.group, lambda: group.rank, group.barrier, lambda: ddp.Context(group)):
            with support.raises(self, ddp.InvalidStateError, "closed"):
                misuse()
        self.assertIn("closed", repr(group))

    def test_what_is_kept(self):
        state = np.zeros(1000, np.float32)
        job = self.job()
        group = job.group
        held = weakref.ref(state)
        job.add_state("state", state)
        del state
        gc.collect()
        self.assertIsNotNone(held())
        self.doCleanups()
        self.assertIsNone(held())
        store = ddp.Store("tcp://127.0.0.1:0", server=True)
        lonely = ddp.Elastic(store=store, timeout=20).group  # which keeps the job
        gc.collect()
        self.assertEqual((lonely.rank, lonely.world_size), (0, 1))
        del lonely, group


class Ranks(unittest.TestCase):
    def setUp(self):
        self.store = ddp.Store("tcp://127.0.0.1:0", server=True)
        self.addCleanup(self.store.close)
        self.started = []

    def tearDown(self):
        for rank in self.started:
            rank.kill()
            rank.communicate()

    def start(self, *arguments):
        rank = subprocess.Popen([sys.executable, "-B", __file__, *arguments, f"tcp://127.0.0.1:{self.store.port}"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        rank.lines = []
        self.started.append(rank)
        return rank

    def read_until(self, rank, word):
        for line in rank.stdout:
            rank.lines.append(line)
            if word in line:
                return line
        self.fail(f"no '{word}' in: {''.join(rank.lines)}")

    def test_a_killed_rank_and_a_new_one(self):
        self.lose_and_get("train", reference())

    def test_a_killed_rank_with_shards_and_a_new_one(self):
        self.lose_and_get("train-shards", reference(with_momenta=False))

    def lose_and_get(self, program, expected):
        ranks = [self.start(program, "tcp") for _ in range(3)]
        for rank in ranks:
            self.read_until(rank, "of 3")
        time.sleep(0.2)
        ranks[1].kill()
        self.read_until(ranks[0], "of 2")
        ranks[1] = self.start(program, "tcp")
        self.assertGreater(int(self.read_until(ranks[1], "of 3").split()[3]), 0)
        for rank in ranks:
            said = "".join(rank.lines) + rank.communicate(timeout=60 * SLACK)[0]
            self.assertIn(expected, said)
            self.assertEqual(rank.returncode, 0, said)


if __name__ == "__main__":
    if sys.argv[1:2] in (["train"], ["train-shards"]):
        (train if sys.argv[1] == "train" else train_shards)(sys.argv[3], sys.argv[2])
    else:
        support.main()
