"""Everything that needs several ranks, against NumPy. ddprun starts this file on 2 and 3 ranks; all run the same tests in the
same order."""
import asyncio
import signal
import sys
import threading
import unittest
import weakref

import numpy as np

import ddp
import support


def values(rank, size=1000):
    """The numbers that a rank gives: whole ones, which add without rounding."""
    return ((np.arange(size) * 7 + rank * 13) % 32).astype("f4")


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(timeout=30)
        cls.rank, cls.world = cls.group.rank, cls.group.world_size
        cls.everyones = np.stack([values(rank) for rank in range(cls.world)])

    def test_collectives(self):
        group, mine, all_of_them = self.group, values(self.rank), self.everyones
        for op, expected in (("sum", all_of_them.sum(0)), ("max", all_of_them.max(0)), ("min", all_of_them.min(0))):
            recv = mine.copy()
            group.allreduce(recv, op)
            np.testing.assert_array_equal(recv, expected)
        recv = np.zeros(1000, "f4")
        group.allreduce(recv, ddp.AVG, send=mine)
        np.testing.assert_allclose(recv, all_of_them.mean(0), rtol=1e-6)
        gathered = np.zeros((self.world, 1000), "f4")
        group.allgather(gathered, mine)
        np.testing.assert_array_equal(gathered, all_of_them)
        part = np.zeros(500, "f4")
        group.reduce_scatter(part, np.tile(mine[:500], self.world))
        np.testing.assert_array_equal(part, all_of_them[:, :500].sum(0))
        sent = values(self.rank)
        group.broadcast(sent, root=1)
        np.testing.assert_array_equal(sent, values(1))
        group.barrier()

    def test_all_to_all(self):
        group, rank, world = self.group, self.rank, self.world
        recv = np.zeros((world, 7), "i4")
        group.all_to_all(recv, np.arange(world * 7, dtype="i4").reshape(world, 7) + 1000 * rank)
        for of in range(world):
            np.testing.assert_array_equal(recv[of], np.arange(7) + 7 * rank + 1000 * of)
        # rank `of` sends of + 2 * to elements to rank `to`
        send = np.concatenate([np.full(rank + 2 * to, 10 * rank + to, "f4") for to in range(world)])
        expected = np.concatenate([np.full(of + 2 * rank, 10 * of + rank, "f4") for of in range(world)])
        recv = np.zeros(len(expected), "f4")
        sent, received = [rank + 2 * to for to in range(world)], [of + 2 * rank for of in range(world)]
        group.all_to_all(recv, send, received, sent, async_op=True).wait()
        np.testing.assert_array_equal(recv, expected)
        for wrong in (lambda: group.all_to_all(np.zeros(world + 1, "f4"), np.zeros(world + 1, "f4")),
                      lambda: group.all_to_all(recv, send, received),
                      lambda: group.all_to_all(recv, send, received[1:] + [99], sent),
                      lambda: group.all_to_all(recv, send, received + [0], sent),
                      lambda: group.all_to_all(recv, send, [-1] * world, sent)):
            with self.assertRaises(ValueError):
                wrong()
        with self.assertRaisesRegex(ddp.InvalidArgumentError, "all_to_all: n is"):
            group.all_to_all(recv, send, received + [0], sent + [0])
        with self.assertRaisesRegex(ddp.InvalidArgumentError, "does not work in place"):
            both = np.zeros(world, "f4")
            group.all_to_all(both, both)

    def test_async_and_await(self):
        arrays = [values(self.rank) for _ in range(4)]
        works = [self.group.allreduce(array, async_op=True) for array in arrays]

        async def wait_for_all():
            for work in works:
                await work

        asyncio.run(wait_for_all())
        for array in arrays:
            np.testing.assert_array_equal(array, self.everyones.sum(0))

    def test_norms_and_clipping(self):
        ctx = ddp.Context(self.group)
        grads = [np.zeros(1000, "f4"), np.zeros(1000, "f4")]
        for i, grad in enumerate(grads):
            ctx.register(f"p{i}", np.zeros(1000, "f4"), grad)
        norms = [ctx.track_grad_norm(), ctx.track_grad_norm(np.inf, [1]), ctx.track_grad_norm(1, [0])]
        with self.assertRaises(ValueError):
            ctx.track_grad_norm(2, [])
        ctx.commit()
        with self.assertRaises(ddp.InvalidStateError):
            ctx.grad_norm(norms[0])
        mean = self.everyones.mean(0, dtype="f8")
        for _ in range(2):
            ctx.step_begin()
            for i, grad in enumerate(grads):
                grad[:] = values(self.rank) * (i + 1)
                ctx.grad_ready(i)
            ctx.finalize()
            total = float(np.sqrt(5 * (mean ** 2).sum()))
            self.assertAlmostEqual(ctx.grad_norm(norms[0]) / total, 1, 6)
            self.assertAlmostEqual(ctx.grad_norm(norms[1]) / (2 * mean.max()), 1, 6)
            self.assertAlmostEqual(ctx.grad_norm(norms[2]) / mean.sum(), 1, 6)
            self.assertAlmostEqual(ctx.clip_factor(norms[0], 1), min(1, 1 / (ctx.grad_norm(norms[0]) + 1e-6)))
            self.assertEqual(ctx.clip_grad_norm(norms[0], 1), ctx.grad_norm(norms[0]))
            np.testing.assert_allclose(grads[1], 2 * mean / (total + 1e-6), rtol=1e-5)
        ctx.step_begin()
        for i, grad in enumerate(grads):
            grad[:] = np.nan if i == 1 and self.rank == 0 else 1
            ctx.grad_ready(i)
        ctx.finalize()
        self.assertTrue(np.isnan(ctx.grad_norm(norms[0])))
        with self.assertRaises(ddp.NonfiniteError) as caught:
            ctx.clip_grad_norm(norms[0], 1)
        self.assertEqual(caught.exception.param, 1)

    def test_votes(self):
        ctx = self.make(votes=True)
        self.assertEqual(ctx.votes(), (ddp.Vote(0), ddp.Vote(0), 0))
        last = self.world - 1
        for cast, level, expected in ((ddp.Vote.STOP, 0, (ddp.Vote.STOP, ddp.Vote.STOP, 0)), (0, 7, (0, 0, 7)),
                                      (ddp.Vote.USER << self.rank, self.rank, (ddp.Vote.USER * (2 ** self.world - 1), 0, last)),
                                      (ddp.Vote.CHECKPOINT * (self.rank == last), 0, (ddp.Vote.CHECKPOINT, 0, 0))):
            ctx.vote(cast, level=level)
            self.train(ctx, 1)
            self.assertEqual(ctx.votes(), expected)
            self.train(ctx, 1)
            self.assertEqual(ctx.votes(), (ddp.Vote(0), ddp.Vote(0), 0))
        with self.assertRaises(ddp.UnsupportedError):
            ctx.vote(1 << 15)
        with self.assertRaises(ddp.InvalidArgumentError):
            ctx.vote(level=33)
        ctx.close()
        with self.make() as plain, self.assertRaisesRegex(ddp.InvalidStateError, "votes=True"):
            plain.vote(ddp.Vote.STOP)

    def test_votes_in_a_signal_handler(self):
        ctx = self.make(votes=True)
        before = signal.signal(signal.SIGUSR1, lambda *_: ctx.vote(ddp.Vote.CHECKPOINT))
        if self.rank == 0:
            signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        self.train(ctx, 1)
        self.assertEqual(ctx.votes().any, ddp.Vote.CHECKPOINT)
        ctx.close()

    def test_split_and_round_robin(self):
        half = self.group.split(self.rank % 2, -self.rank)
        members = [rank for rank in reversed(range(self.world)) if rank % 2 == self.rank % 2]
        self.assertEqual((half.rank, half.world_size), (members.index(self.rank), len(members)))
        self.assertIsNone(self.group.split(-1))
        turns = ddp.Group.round_robin([self.group.split(0), self.group.split(0)])
        with self.make(turns) as ctx:
            self.train(ctx)
        turns.close()

    def make(self, group=None, **options):
        ctx = ddp.Context(group or self.group, bucket_cap=2000, first_bucket_cap=2000, **options)
        for i in range(4):
            ctx.register(f"p{i}", np.full(1000, self.rank, "f4"), np.zeros(1000, "f4") if i % 2 else None)
        ctx.commit()
        return ctx

    def train(self, ctx, steps=3, expected=None):
        for _ in range(steps):
            ctx.step_begin()
            for parameter in ctx.parameters:
                if parameter.grad is None:
                    parameter.ready(values(self.rank))
                else:
                    parameter.grad[:] = values(self.rank)
                    ctx.grad_ready(parameter)
            ctx.finalize()
            self.check(ctx, self.everyones.mean(0) if expected is None else expected)

    @staticmethod
    def train_with(ctx, gradient):
        for parameter in ctx.parameters:
            ctx.put(parameter, gradient)
        ctx.finalize()

    def check(self, ctx, expected, rtol=1e-6):
        for parameter in ctx.parameters:
            result = np.asarray(parameter.view()) if parameter.grad is None else parameter.grad
            np.testing.assert_allclose(result, expected, rtol=rtol)

    def test_mean_and_initial_values(self):
        with self.make() as ctx:
            np.testing.assert_array_equal(ctx.parameters[0].data, np.zeros(1000))
            self.train(ctx)
            stats = ctx.stats()
            self.assertEqual((stats.steps, stats.synced_steps, stats.param_count), (3, 3, 4))
            self.assertEqual(sum(ctx.bucket_sizes()), stats.param_bytes)
            self.assertEqual(ctx.ready_order(), ctx.parameters)
            plan = ctx.plan()
            with self.make(rebuild=False) as other:
                other.adopt_plan(plan)
                self.train(other)
                self.assertEqual(other.plan(), plan)

    def test_slices_of_one_array(self):
        weights, gradients = np.full((6, 5), self.rank, "f4"), np.zeros((6, 5), "f4")
        with ddp.Context(self.group) as ctx:
            for i, name in enumerate(("query", "key", "value")):
                rows = slice(2 * i, 2 * i + 2)
                ctx.register(name, weights[rows], gradients[rows])
            with support.raises(self, ValueError, "data", "not contiguous"):
                ctx.register("columns", weights[:, :2])
            ctx.commit()
            np.testing.assert_array_equal(weights, 0)
            for _ in range(2):
                ctx.step_begin()
                gradients[:] = values(self.rank, 30).reshape(6, 5)
                for parameter in ctx.parameters:
                    ctx.grad_ready(parameter)
                ctx.finalize()
                expected = np.mean([values(rank, 30).reshape(6, 5) for rank in range(self.world)], 0)
                np.testing.assert_allclose(gradients, expected, rtol=1e-6)

    def test_in_place(self):
        weights = np.full((3, 4, 2), self.rank, "f4")
        block = self.group.alloc(26)
        gradients = np.asarray(block)
        with ddp.Context(self.group) as ctx:
            layers = ctx.register_slices("layer", weights, gradients[:24].reshape(3, 4, 2), in_place=True)
            ctx.register("bias", None, gradients[24:], in_place=True)
            ctx.commit()
            np.testing.assert_array_equal(layers[1].data, np.zeros((4, 2)))
            self.assertEqual([layer.name for layer in layers], ["layer[0]", "layer[1]", "layer[2]"])
            for step in range(3):
                ctx.step_begin()
                gradients[:] = values(self.rank, 26)
                for parameter in reversed(ctx.parameters):
                    ctx.grad_ready(parameter)
                ctx.finalize()
                expected = np.mean([values(rank, 26) for rank in range(self.world)], 0)
                np.testing.assert_allclose(gradients, expected, rtol=1e-6)
                np.testing.assert_allclose(layers[2].grad, expected[16:24].reshape(4, 2), rtol=1e-6)
            self.assertEqual(len(ctx.bucket_sizes()), 1)

    def test_no_sync(self):
        with self.make() as ctx:
            views = [np.asarray(p.view()) if p.grad is None else p.grad for p in ctx.parameters]
            for view in views:
                view[:] = 0
            for synced in (False, True):
                context = ctx.no_sync() if not synced else _nothing()
                with context:
                    for parameter, view in zip(ctx.parameters, views):
                        view += values(self.rank)
                        ctx.grad_ready(parameter)
                    ctx.finalize()
            self.check(ctx, 2 * self.everyones.mean(0))

    def test_put(self):
        with self.make() as ctx:
            for add in (False, True):
                for _ in range(2):  # what the step before has left there does not matter
                    for synced in (False, True):
                        with _nothing() if synced else ctx.no_sync():
                            for parameter in ctx.parameters:
                                ctx.put(parameter, values(self.rank), add=add)
                            ctx.finalize()
                    self.check(ctx, (1 + add) * self.everyones.mean(0))

    def test_check(self):
        def late(parameter):
            parameter.ready(values(self.rank))
            np.asarray(parameter.view())[5] += 1

        for mistake, caught in ((late, ddp.InvalidStateError), (ddp.Parameter.ready, ddp.MissingGradientError)):
            ctx = self.make(self.group.split(0), check=True, check_interval=1)
            self.train(ctx)
            self.train_with(ctx, values(self.rank) / 7)
            # The other rank may hear of it while it still announces.
            with support.raises(self, caught, "p2", "rank 1", "step 4") as error:
                for parameter in ctx.parameters:
                    if parameter == 2 and self.rank == 1:
                        mistake(parameter)
                    else:
                        ctx.put(parameter, values(self.rank))
                ctx.finalize()
            self.assertEqual((error.exception.rank, error.exception.param, error.exception.step), (1, 2, 4))
            ctx.close()

    def test_check_of_values(self):
        self.find_drift(check=True, check_interval=2)

    def test_drift(self):
        self.find_drift(verify_interval=2)

    def find_drift(self, **options):
        """One value of rank 1 changes, and the next comparison finds it."""
        ctx = self.make(self.group.split(0), **options)
        self.train(ctx, 1)
        if self.rank == 1:
            ctx.parameters[3].data[7] += 1
        self.train(ctx, 1)
        with support.raises(self, ddp.MismatchError, "p3", "rank 1 has others than rank") as error:
            self.train(ctx, 1)
        self.assertEqual((error.exception.rank, error.exception.param, error.exception.step),
                         (1 if self.world > 2 else None, 3, 2))
        ctx.close()

    def test_bad_numbers(self):
        for skip in (False, True):
            ctx = self.make(self.group.split(0), skip_nonfinite=skip, refuse_nonfinite=not skip)
            self.train(ctx, 1)
            self.group.barrier()  # nobody is still in the step before
            with support.raises(self, ddp.NonfiniteError, "p2", "rank 1", "step 1") as error:
                for parameter in ctx.parameters:
                    bad = parameter == 2 and self.rank == 1
                    ctx.put(parameter, values(self.rank) * (np.float32("nan") if bad else 1))
                ctx.finalize()
            self.assertEqual((error.exception.rank, error.exception.param, error.exception.step), (1, 2, 1))
            if skip:
                self.train(ctx, 1)
            ctx.close()

    def test_gradients_from_threads(self):
        with self.make() as ctx:
            for _ in range(3):
                ctx.step_begin()
                threads = [threading.Thread(target=p.ready, args=(values(self.rank),)) for p in ctx.parameters
                           if p.grad is None]
                for thread in threads:
                    thread.start()
                for parameter in ctx.parameters:
                    if parameter.grad is not None:
                        parameter.grad[:] = values(self.rank)
                        ctx.grad_ready(parameter)
                for thread in threads:
                    thread.join()
                ctx.finalize()
                self.check(ctx, self.everyones.mean(0))

    def test_sparse_and_factors(self):
        with ddp.Context(self.group, reduction="sum") as ctx:
            sparse = ctx.register("sparse", shape=(10, 2), sparse=True)
            factored = ctx.register("factored", shape=(40, 30), factored=True)
            ctx.commit()
            ctx.grad_ready_sparse(sparse, np.array([self.rank, 9]), np.ones((2, 2), "f4"))
            left, right = values(self.rank, 80).reshape(2, 40), values(self.rank, 60).reshape(2, 30)
            ctx.grad_ready_factors(factored, left, right)
            ctx.finalize()
            rows, each = (np.asarray(part) for part in ctx.sparse_gradient(sparse))
            np.testing.assert_array_equal(rows, [*range(self.world), 9])
            np.testing.assert_array_equal(each[:, 0], [1] * self.world + [self.world])
            expected = sum(values(r, 80).reshape(2, 40).T @ values(r, 60).reshape(2, 30) for r in range(self.world))
            np.testing.assert_array_equal(np.asarray(factored.view()), expected)

    def test_gradients_of_another_type(self):
        """f32 gradients of bf16 values, in a view, in an array and in slices; put, sparse, and to a hook."""
        with ddp.Context(self.group) as ctx:
            data = [np.full(shape, 0x3f80 + self.rank, "u2").view("f2") for shape in ((3,), (3,), (2, 3), (4, 3))]
            grad, grads = np.zeros(3, "f4"), np.zeros((2, 3), "f4")
            viewed = ctx.register("viewed", data[0], dtype="bf16", grad_dtype="f32")
            given = ctx.register("given", data[1], grad, dtype="bf16", grad_dtype=np.float32)
            slices = ctx.register_slices("slices", data[2], grads, dtype="bf16", grad_dtype="f32")
            sparse = ctx.register("sparse", data[3], dtype="bf16", grad_dtype="f32", sparse=True)
            with support.raises(self, TypeError, "w: grad", "f32", "bf16"):
                ctx.register("w", data[1], grad, dtype="bf16")
            ctx.commit()
            self.assertTrue(all((each.view("u2") == 0x3f80).all() for each in data))  # rank 0's
            self.assertEqual([(p.dtype, p.grad_dtype) for p in ctx.parameters], [(ddp.BF16, ddp.F32)] * 5)
            mine = np.float32([1, 2, 3]) + np.float32(2**-12 * self.rank)
            viewed.ready(mine)
            for number, each in enumerate((given, *slices)):
                (grad if number == 0 else grads[number - 1])[:] = mine
                each.ready()
            ctx.grad_ready_sparse(sparse, np.array([1]), mine[None])
            ctx.finalize()
            mean = np.float32([1, 2, 3]) + np.float32(2**-12 * (self.world - 1) / 2)
            _, rows = ctx.sparse_gradient(sparse)
            for each in (viewed.view(), grad, *grads, np.asarray(rows)[0]):
                np.testing.assert_allclose(np.asarray(each), mean, rtol=2e-7)

    def test_batch_share(self):
        with ddp.Context(self.group, reduction="weighted_mean") as ctx:
            weight = ctx.register("w", np.zeros(3, "f4"), np.zeros(3, "f4"))
            ctx.share_batch(24 * self.world, multiple=4)
            ctx.commit()
            for step in range(20):
                mine = ctx.batch_share()
                if step == 0:
                    self.assertEqual(mine, range(24 * self.rank, 24 * (self.rank + 1)))
                ctx.set_weight(len(mine))
                ctx.step_begin()
                weight.grad[:] = np.mean(mine)
                ctx.grad_ready(weight)
                ctx.finalize()
                np.testing.assert_allclose(weight.grad, (24 * self.world - 1) / 2, rtol=1e-6)
                ctx.batch_time(len(mine) * (1e-3 if self.rank == 0 else 2e-6))
            # Rank 0 keeps the least that it can have.
            if self.rank == 0 and self.world > 1:
                self.assertEqual(ctx.batch_share(), range(0, 4))
            with self.assertRaises(ddp.InvalidStateError):
                ctx.share_batch(24)

    def test_participation(self):
        with self.make(find_unused=True, reduction="weighted_mean") as ctx:
            used = ctx.parameters[1]
            ctx.set_weight(self.rank + 1)
            ctx.step_begin()
            used.grad[:] = values(self.rank)
            ctx.grad_ready(used)
            ctx.mark_unused(ctx.parameters[2:])
            ctx.finalize()
            weights = np.arange(1, self.world + 1)[:, None]
            np.testing.assert_allclose(used.grad, (self.everyones * weights).sum(0) / weights.sum(), rtol=1e-6)
            self.assertEqual([ctx.param_used(p) for p in ctx.parameters], [False, True, False, False])
        with self.make(join=True) as ctx:
            for _ in range(self.rank + 1):
                ctx.step_begin()
                for parameter in ctx.parameters:
                    ctx.put(parameter, values(self.rank)) if parameter.grad is None else ctx.grad_ready(parameter)
                ctx.finalize()
            ctx.join()

    def test_hooks(self):
        def sums_twice(group, bucket):
            self.assertEqual(bucket.op, ddp.AVG)
            flat = np.asarray(bucket.buffer)

            def halve():
                self.assertIs(threading.current_thread(), threading.main_thread())
                flat[:] /= 2
                return group.allreduce(bucket.buffer, async_op=True)  # a continuation may go on with another

            return group.allreduce(bucket.buffer, async_op=True).then(halve)

        def in_place(group, bucket):
            group.allreduce(bucket.buffer, bucket.op)
            for gradient in bucket.gradients:
                np.asarray(gradient.array)[...] += 1

        def in_double(group, bucket):
            wide = np.asarray(bucket.buffer).astype("f8")
            bucket.set_buffer(wide)
            return group.allreduce(wide, "avg", async_op=True)

        mean = self.everyones.mean(0)
        with self.make() as ctx:
            for hook, expected in ((sums_twice, mean * self.world * self.world / 2), (in_place, mean + 1),
                                   (in_double, mean), (None, mean)):
                ctx.set_hook(hook)
                self.train(ctx, 2, expected)
            self.assertEqual(ctx.hook_name, "allreduce")
            reduced, after = [], []
            ctx.use_hook("fp16")
            ctx.hook_then(lambda group, bucket: after.append(bucket.index))
            ctx.set_reduced_callback(lambda parameter, used: reduced.append((parameter.name, used)))
            self.train(ctx, 1, mean.astype("f2").astype("f4"))
            self.assertEqual(sorted(reduced), [(f"p{i}", True) for i in range(4)])
            self.assertEqual(after, list(range(ctx.bucket_count)))
            ctx.use_hook("powersgd", rank=1, start=2, warm_start=True)
            state = ctx.hook_state()
            ctx.load_hook_state(state)
            ctx.compress_hook("bf16")
            self.assertIn("powersgd", ctx.hook_name)

    def test_buffers_and_averager(self):
        with ddp.Context(self.group) as ctx:
            weight = np.full(5, self.rank, "f4")
            means = np.full(5, self.rank, "f4")
            ctx.register("w", weight, np.zeros(5, "f4"))
            ctx.register_buffer("means", means)
            ctx.commit()
            np.testing.assert_array_equal(means, 0)
            lent = []

            def largest(group, buffers):
                lent.append(group)
                group.allreduce(buffers[0], "max")

            ctx.set_buffer_hook(largest)
            averager = ddp.Averager(ctx, 2)
            results = []
            for _ in range(3):
                ctx.step_begin()
                ctx.grad_ready(0)
                ctx.finalize()
                means[:] = self.rank
                weight[:] = self.rank
                results.append(averager.step())
            self.assertEqual((results, averager.steps), ([self.world, 0, self.world], 3))
            np.testing.assert_allclose(weight, (self.world - 1) / 2)
            np.testing.assert_array_equal(means, self.rank)
            ctx.step_begin()
            np.testing.assert_array_equal(means, self.world - 1)
            with support.raises(self, ddp.InvalidStateError, "buffer hook"):
                lent[-1].barrier()

    def test_outer_optimizer(self):
        """The formulas of DiLoCo and SlowMo in NumPy."""
        for kind, inner in (("sgd", 1.0), ("nesterov", 1.0), ("slowmo", 0.1)):
            weight, state = np.zeros(5, "f8"), b""
            x, u = np.zeros(5), np.zeros(5)
            with ddp.Context(self.group) as ctx:
                ctx.register("w", weight, np.zeros(5, "f8"))
                ctx.commit()
                averager = ddp.Averager(ctx, 1)
                averager.set_outer(kind, learning_rate=0.7, momentum=0.9, inner_learning_rate=inner)
                for step in range(6):
                    moves = np.sin(np.arange(5.0) + step)
                    weight += moves * (self.rank + 1)
                    if step == 4:  # as after a restart
                        averager = ddp.Averager(ctx, 1)
                        averager.set_outer(kind, learning_rate=0.7, momentum=0.9, inner_learning_rate=inner)
                        averager.load_state(state)
                        self.assertEqual(averager.steps, 4)
                    self.assertEqual(averager.step(), self.world)
                    state = averager.state()
                    average = x + moves * (self.world + 1) / 2
                    if step == 0:
                        x = average
                    else:
                        d = x - average
                        u = 0.9 * u + d / inner
                        x = x - 0.7 * (d + 0.9 * u if kind == "nesterov" else inner * u)
                    np.testing.assert_allclose(weight, x, rtol=1e-12, atol=1e-12)
                with support.raises(self, ValueError, "adam"):
                    averager.set_outer("adam")
                with support.raises(self, ValueError, "momentum"):
                    averager.set_outer(momentum=1)
                averager.set_outer("none")

    def test_streaming(self):
        """Two fragments that take turns and travel for a step, in NumPy."""
        size = 3
        first, second = np.zeros(size, "f8"), np.zeros(size, "f8")
        with ddp.Context(self.group) as ctx:
            for name, value in (("first", first), ("second", second)):
                ctx.register(name, value, np.zeros(size, "f8"))
            ctx.commit()
            averager = ddp.Averager(ctx, 4)
            averager.set_outer("nesterov", 0.7, 0.9, fragments=2, delay=1, alpha=0.25)
            averager.set_fragments([1, 0])
            fragments = (second, first)
            own = np.zeros((2, size))
            x, u, means = np.zeros((2, size)), np.zeros((2, size)), np.zeros((2, size))
            sent = -1
            for step in range(14):
                moves = np.sin(np.arange(2.0 * size) + step).reshape(2, size)
                for fragment, values in enumerate(fragments):
                    values += moves[fragment] * (self.rank + 1)
                    own[fragment] += moves[fragment] * (self.rank + 1)
                    means[fragment] += moves[fragment] * (self.world + 1) / 2
                mixed = averager.step()
                if step == 0:
                    x, own, means = means.copy(), means.copy(), means.copy()
                    self.assertEqual(mixed, self.world)
                elif step % 2 == 0:
                    sent, mean = (step // 2 - 1) % 2, means[(step // 2 - 1) % 2].copy()
                    self.assertEqual(mixed, 0)
                elif step > 1:
                    d = x[sent] - mean
                    u[sent] = 0.9 * u[sent] + d
                    x[sent] -= 0.7 * (d + 0.9 * u[sent])
                    for each in (own, means):
                        each[sent] = 0.25 * each[sent] + 0.75 * x[sent]
                    self.assertEqual(mixed, self.world)
                for fragment, values in enumerate(fragments):
                    np.testing.assert_allclose(values, own[fragment], rtol=1e-12, atol=1e-12)
            self.assertEqual(ctx.stats().averaged_bytes, 0 if self.world == 1 else 8 * size * (2 + 6))
            averager.go_back()
            for fragment, values in enumerate(fragments):
                np.testing.assert_allclose(values, x[fragment], rtol=1e-12, atol=1e-12)
            with support.raises(self, ValueError, "must divide the period, 4"):
                averager.set_outer(fragments=3)
            with support.raises(self, ValueError, "fragment 1 has no parameter"):
                averager.set_fragments([0, 0])

    def test_other_group_goes_on(self):
        """A hook that raises breaks the context: here with its own exception, on the other ranks with an error."""
        doomed = self.group.split(0)
        ctx = self.make(doomed)

        def fail_on_rank_0(group, bucket):
            if self.rank == 0 and bucket.index == 1:
                raise LookupError("hook of rank 0")
            return group.allreduce(bucket.buffer, bucket.op, async_op=True)

        ctx.set_hook(fail_on_rank_0)
        self.group.barrier()  # nobody is still in commit when the group breaks
        kind, words = (LookupError, "hook of rank 0") if self.rank == 0 else (ddp.CallbackError, "LookupError: hook of rank 0")
        with support.raises(self, kind, words) as caught:
            self.train(ctx, 1)
        error = caught.exception.__cause__ if self.rank == 0 else caught.exception
        self.assertEqual((type(error), error.rank, error.bucket, error.step), (ddp.CallbackError, 0, 1, 0))
        ctx.set_group(self.group.split(0))
        ctx.set_hook(None)
        self.train(ctx)
        ctx.close()

    def test_a_step_that_fails_keeps_the_arrays_of_its_works(self):
        """Their operations may go on: here the other ranks have not even begun theirs."""
        given = []

        def hook(group, bucket):
            half = np.asarray(bucket.buffer) * np.float32(0.5)
            given.append(weakref.ref(half))
            return group.allreduce(bucket.buffer, bucket.op, send=half, async_op=True)

        def fail(ctx):
            ctx.set_group(self.group.split(0))
            self.group.barrier()  # nobody is still in set_group when the group breaks
            given.clear()
            if self.rank > 0:
                self.group.barrier()
            with self.assertRaises(ddp.MissingGradientError):
                ctx.put(ctx.parameters[-1], values(self.rank))
                ctx.finalize()
            if self.rank == 0:
                self.assertIsNotNone(given[0]())
                self.group.barrier()

        ctx = self.make(self.group.split(0))
        ctx.set_hook(hook)
        fail(ctx)
        ctx.set_group(self.group.split(0))
        self.train(ctx, 1, self.everyones.mean(0) / 2)
        self.assertEqual([array() for array in given], [None] * len(given))
        fail(ctx)
        ctx.close()
        self.assertEqual([array() for array in given], [None] * len(given))

    def test_join_lets_go_of_past_steps(self):
        """Arrays that the hook gave to the operations of past steps are freed. The last rank is the one with inputs."""
        alive, most = weakref.WeakSet(), 0

        def hook(group, bucket):
            nonlocal most
            work = group.allreduce(bucket.buffer, bucket.op, async_op=True)
            alive.add(work)
            most = max(most, len(alive))
            return work

        with self.make(join=True) as ctx:
            ctx.set_hook(hook)
            for _ in range(20 if self.rank == self.world - 1 else 0):
                ctx.step_begin()
                self.train_with(ctx, values(self.rank))
            ctx.join()
            self.assertEqual((ctx.stats().synced_steps, len(alive)), (20, 0))
            self.assertLessEqual(most, 2 * ctx.bucket_count)

    def test_mismatch_and_abort(self):
        with ddp.Context(self.group) as ctx:
            ctx.register("w", shape=(2 + (self.rank == 1),))
            with support.raises(self, ddp.MismatchError, "w"):
                ctx.commit()
        lonely = self.group.split(0)
        self.group.barrier()
        if self.rank == 0:
            lonely.abort("enough")
        with support.raises(self, ddp.AbortedError, "enough") as caught:
            lonely.barrier()
            lonely.barrier()
        self.assertEqual(caught.exception.rank, 0)
        with self.assertRaises(ddp.AbortedError):
            lonely.check()


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None


if __name__ == "__main__":
    support.main(counts=map(int, sys.argv[1:]))
