"""The optimizers of ddp/optimizer.h on ranks: the values are those of plain NumPy, with shards they are those without, bit for bit, and ranks
that differ get an error.

    optimizers_test.py     on 1, 2, 3 and 5 ranks
"""
import gc
import unittest

import support

support.need("numpy")

import numpy  # noqa: E402

import ddp  # noqa: E402

SHAPES = [(40, 25), (3,), (257,), (129, 61), (1,), (5, 20, 10), (8, 8), (9001,), (17, 1)]
OPTIMIZERS = [("sgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}), ("adamw", {"lr": 0.01}), ("lamb", {"lr": 0.01}),
              ("muon", {"lr": 0.02})]


class Reference:
    """Plain NumPy, in f64."""

    def __init__(self, name, values):
        self.rule, self.t = getattr(self, name), 0
        self.values = [value.astype("f8") for value in values]
        self.state = [{} for _ in values]

    def sgd(self, x, g, state, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
        g = g + weight_decay * x
        state["momentum_buffer"] = b = momentum * state.get("momentum_buffer", 0) + g
        return x - lr * (g + momentum * b if nesterov else b)

    def adamw(self, x, g, state, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01):
        state["exp_avg"] = m = beta1 * state.get("exp_avg", 0) + (1 - beta1) * g
        state["exp_avg_sq"] = v = beta2 * state.get("exp_avg_sq", 0) + (1 - beta2) * g * g
        return x - lr * weight_decay * x - lr * m / (1 - beta1**self.t) / (numpy.sqrt(v / (1 - beta2**self.t)) + eps)

    def step(self, gradients, options, of_first):
        self.t += 1
        for i, gradient in enumerate(gradients):
            self.values[i] = self.rule(self.values[i], gradient, self.state[i], **options, **(of_first if i == 0 else {}))


class Training:
    def __init__(self, group, name, options, shard, owners=(), cap=1 << 20):
        self.context, self.shard = ddp.Context(group, shard=shard, bucket_cap=cap, first_bucket_cap=cap), shard
        self.rank, self.world = group.rank, group.world_size
        self.values = [numpy.sin(numpy.arange(numpy.prod(shape)) * 0.7).astype(numpy.float32).reshape(shape) for shape in SHAPES]
        self.gradients = [numpy.zeros_like(value) for value in self.values]
        for i, (value, gradient) in enumerate(zip(self.values, self.gradients)):
            self.context.register(f"p{i}", value, gradient)
            if owners:
                self.context.set_owner(i, owners[i % len(owners)])
        self.context.commit()
        self.optimizer = ddp.Optimizer(self.context, name, **options)

    def backward(self, step):
        for i in reversed(range(len(SHAPES))):
            if self.shard:
                self.context.wait_value(i)
            self.gradients[i][...] = gradient_of(self.values[i], self.rank, step)
            self.context.grad_ready(i)
        self.context.finalize()

    def step(self, step, scale=0.7):
        self.backward(step)
        self.optimizer.step(scale)
        if self.shard:
            self.context.publish()

    def result(self):
        for step in range(5):
            self.step(step)
        return self.bits()

    def bits(self):
        self.arrive()
        return b"".join(value.tobytes() for value in self.values)

    def arrive(self):
        for i in range(len(SHAPES)):
            self.context.wait_value(i)

    def saved(self):
        values = [piece.value for piece in self.context.pieces()] if self.shard else {p.name: p.data for p in self.context.parameters}
        return {"value": values, **self.optimizer.state()}


def gradient_of(values, rank, step):
    return values * (rank + step) + numpy.cos(values * (rank + 1))


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(deterministic=True)

    def test_shards_train_to_the_same_bits(self):
        for name, options in OPTIMIZERS:
            want = Training(self.group, name, options, False).result()
            for owners, cap in (((), 1 << 20), ((), 4096), (("whole", "elements", "replicated"), 4096), (("whole",), 1 << 20),
                                (("whole", "replicated"), 64)):
                if name == "muon" and (not owners or "elements" in owners):
                    continue
                self.assertEqual(Training(self.group, name, options, True, owners, cap).result(), want, f"{name}, {owners}, {cap}")
                if name == "lamb" and (not owners or "elements" in owners):
                    continue
                training = Training(self.group, name, options, True, owners, cap)
                training.optimizer.in_step(0.7)
                for step in range(5):
                    training.backward(step)
                self.assertEqual(training.bits(), want, f"{name} in the step, {owners}, {cap}")

    def test_one_owner_of_a_matrix(self):
        training = Training(self.group, "muon", {}, True)
        training.backward(0)
        with support.raises(self, ddp.InvalidStateError, "'p0' is updated as a whole matrix"):
            training.optimizer.step()

    def test_once_a_step(self):
        for shard in False, True:
            training = Training(self.group, "adamw", {}, shard)
            with support.raises(self, ddp.InvalidStateError, "no step has given means"):
                training.optimizer.step()
            training.step(0)
            with support.raises(self, ddp.InvalidStateError, "has sent the values" if shard else "have been applied already"):
                training.optimizer.step()

    def test_values_of_numpy(self):
        for name, options, later in (("sgd", {"lr": 0.01, "momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}),
                                     ("adamw", {"lr": 0.01, "beta2": 0.99}, {"weight_decay": 0.0})):
            for shard in False, True:
                training = Training(self.group, name, options, shard)
                reference = Reference(name, training.values)
                key, value = next(iter(later.items()))
                training.optimizer.set(key, value, training.context.parameters[0])
                for step in range(5):
                    if step == 3:
                        training.optimizer.set("lr", 0.005)
                    ranks = range(self.group.world_size)
                    reference.step([numpy.float64(0.7) * sum(gradient_of(value, rank, step) for rank in ranks) / len(ranks)
                                    for value in reference.values], {**options, "lr": 0.005 if step >= 3 else 0.01}, later)
                    training.step(step)
                training.arrive()
                self.check(training, reference)

    def check(self, training, reference, steps=5):
        for value, expected in zip(training.values, reference.values):
            numpy.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
        owned = {piece.param: piece for piece in training.context.pieces()}
        for key, by_name in training.optimizer.state().items():
            for name, state in by_name.items():
                self.assertEqual(name, state.param.name)
                if key == "step":
                    self.assertEqual((numpy.asarray(state.data), state.first, state.count, state.replicated), ([steps], 0, 1, True))
                    continue
                piece = owned.get(state.param)
                first, count = (piece.first, piece.count) if piece else (0, training.values[state.param].size)
                self.assertEqual((state.first, state.count, state.replicated), (first, count, not piece or piece.replicated))
                expected = numpy.ravel(reference.state[state.param][key])[first:first + count]
                numpy.testing.assert_allclose(numpy.asarray(state.data), expected, rtol=1e-3, atol=1e-5)

    def test_saved_on_all_ranks_and_loaded_on_one_less(self):
        world = self.group.world_size
        rest = self.group.split(0 if self.group.rank < max(1, world - 1) else -1)
        for shard in False, True:
            folder = support.shared_folder(self, self.group)
            training = Training(self.group, "adamw", {"lr": 0.01}, shard, ("whole", "elements", "replicated") if shard else ())
            for step in range(4):
                training.step(step)
            training.arrive()
            before = training.bits()
            training.context.save_shards(folder / "save", training.saved(), note="4")
            if rest is None:
                continue
            again = Training(rest, "adamw", {"lr": 0.01}, shard)
            self.assertEqual(again.context.load_shards(folder / "save", again.saved()), "4")
            self.assertEqual(again.bits(), before)
            reference = Reference("adamw", again.values)
            for step in range(4, 7):
                again.step(step)
            self.assertTrue(all(numpy.asarray(state.data) == [7] for state in again.optimizer.state()["step"].values()))
            # As training that was never interrupted, whose state no rank divides.
            plain = Training(ddp.Group(0, 1), "adamw", {"lr": 0.01}, False)
            plain.context.load_shards(folder / "save", {**plain.saved()})
            self.assertEqual(plain.bits(), before)
            for param, state in enumerate(reference.state):
                for key in "exp_avg", "exp_avg_sq":
                    name = f"p{param}"
                    state[key] = numpy.asarray(plain.optimizer.state()[key][name].data).reshape(SHAPES[param]).astype("f8")
            reference.t = 4
            for step in range(4, 7):
                ranks = range(rest.world_size)
                reference.step([0.7 * sum(gradient_of(value, rank, step) for rank in ranks) / len(ranks) for value in reference.values],
                               {"lr": 0.01}, {})
            again.arrive()
            self.check(again, reference, 7)

    def test_state_outlives_the_optimizer(self):
        training = Training(self.group, "adamw", {}, True)
        training.step(0)
        arrays = [numpy.asarray(state.data) for state in training.optimizer.state()["exp_avg"].values()]
        before = [array.copy() for array in arrays]
        self.assertTrue(any(array.any() for array in arrays))
        training.context.close()
        with support.raises(self, ddp.InvalidStateError, "the context is closed"):
            training.optimizer.step()
        with support.raises(self, ddp.InvalidStateError, "the context is closed"):
            training.optimizer.state()
        del training
        gc.collect()
        for array, was in zip(arrays, before):
            numpy.testing.assert_array_equal(array, was)

    def test_bf16_has_masters(self):
        with ddp.Context(self.group, shard=True) as ctx:
            ctx.register("w", numpy.full(500, 0x3F80, "u2").view("f2"), dtype="bf16", grad_dtype="f32")
            ctx.commit()
            optimizer = ddp.Optimizer(ctx, "sgd", lr=2.0**-12)
            for _ in range(3):
                numpy.asarray(ctx.grad_view(0))[:] = 1
                ctx.grad_ready(0)
                ctx.finalize()
                optimizer.step()
                ctx.publish()
                ctx.wait_value(0)
            numpy.testing.assert_array_equal(ctx.parameters[0].data.view("u2"), 0x3F80)  # too small a change for bf16
            for state in optimizer.state()["master"].values():
                self.assertEqual((state.data.dtype, state.count), (ddp.F32, ctx.pieces()[0].count))
                numpy.testing.assert_array_equal(numpy.asarray(state.data), numpy.float32(1 - 3 * 2.0**-12))

    def test_mistakes(self):
        training = Training(self.group, "sgd", {}, True)
        for name, options, words in (("adam", {}, ("adam", "adamw")), ("sgd", {"beta1": 1}, ("beta1", "momentum")),
                                     ("adamw", {"beta1": 1}, ("beta1",)), ("sgd", {"lr": float("nan")}, ("lr",))):
            with support.raises(self, ddp.InvalidArgumentError, *words):
                ddp.Optimizer(training.context, name, **options)
        with support.raises(self, TypeError, "lr: 'fast' is not a number"):
            ddp.Optimizer(training.context, "sgd", lr="fast")
        with support.raises(self, TypeError, "momentum: None is not a number"):
            training.optimizer.set("momentum", None)
        with support.raises(self, ddp.InvalidArgumentError, "rate"):
            training.optimizer.set("rate", 1)
        with support.raises(self, ddp.InvalidArgumentError, "99"):
            training.optimizer.set("lr", 1, 99)
        training.backward(0)
        for scale in -1, float("inf"):
            with support.raises(self, ddp.InvalidArgumentError, "scale"):
                training.optimizer.step(scale)
        with ddp.Context(self.group) as ctx:
            ctx.register("w", numpy.zeros(3))
            with support.raises(self, ddp.InvalidStateError, "commit"):
                ddp.Optimizer(ctx, "sgd")
        with ddp.Context(self.group) as ctx:
            ctx.register("w", shape=(3,))
            ctx.commit()
            with support.raises(self, ddp.InvalidStateError, "'w'"):
                ddp.Optimizer(ctx, "sgd")

    def test_clipped_by_the_factor(self):
        for shard in False, True:
            with ddp.Context(self.group, shard=shard) as ctx:
                value = numpy.zeros(1000, "f4")
                ctx.register("w", value)
                norm = ctx.track_grad_norm()
                ctx.commit()
                optimizer = ddp.Optimizer(ctx, "sgd", lr=1)
                numpy.asarray(ctx.grad_view(0))[:] = self.group.rank
                ctx.grad_ready(0)
                ctx.finalize()
                mean = numpy.full(1000, (self.group.world_size - 1) / 2)
                self.assertAlmostEqual(ctx.grad_norm(norm), numpy.linalg.norm(mean), 4)
                optimizer.step(min(2 / (ctx.grad_norm(norm) + 1e-6), 1))
                if shard:
                    ctx.publish()
                    ctx.wait_value(0)
                numpy.testing.assert_allclose(value, -mean * min(1, 2 / (numpy.linalg.norm(mean) + 1e-6)), rtol=1e-5)

    def test_zz_a_scale_of_its_own(self):
        if self.group.world_size == 1:
            return
        training = Training(self.group, "adamw", {}, False)
        training.step(0, 1.0 + self.group.rank)
        with support.raises(self, ddp.MismatchError, "their optimizers have different settings"):
            training.step(1)


support.main((1, 2, 3, 5))
