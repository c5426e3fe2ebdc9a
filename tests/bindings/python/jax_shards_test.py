"""ddp.jax.ShardedOptimizer: the values are those of optax on one process that has the mean gradient. On 1, 2 and 3 ranks; what 4 ranks save is
loaded by 3 and by 1.

    jax_shards_test.py
"""
import os
import pathlib
import shutil
import sys
import tempfile
import types
import unittest
import unittest.mock
import warnings

import support

if support.RANK >= 0:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
support.need("numpy", "jax", "optax")

import jax  # noqa: E402  (only where it is)
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import ddp  # noqa: E402
from ddp.jax import DataParallel, ShardedOptimizer  # noqa: E402

CAPS = {"bucket_cap": 3000, "first_bucket_cap": 1000}
SHAPES = {"a": (17, 13), "factored": (130, 129), "inner": [(5,), ()], "long": (1009,)}


def make_params(dtype="f4"):
    generator = np.random.default_rng(1)
    return jax.tree.map(lambda shape: np.asarray(generator.standard_normal(shape), dtype), SHAPES, is_leaf=lambda each: isinstance(each, tuple))


@jax.jit
def gradients(params, rank, step):
    def one(value):
        waves = jnp.sin(jnp.arange(value.size, dtype="f4").reshape(value.shape) * (rank + 1) + step)
        return (value * (0.37 + rank - 0.1 * step) + waves).astype(value.dtype)

    return jax.tree.map(one, params)


def by_dimensions(tree):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, tree)


def elementwise():
    return {
        "adamw": optax.adamw(1e-2, weight_decay=0.1, mask=by_dimensions),
        "sgd": optax.sgd(0.1, momentum=0.9, nesterov=True),
        "rmsprop": optax.rmsprop(1e-2, centered=True),
        "schedule": optax.chain(optax.clip(0.5), optax.lion(optax.warmup_cosine_decay_schedule(0, 0.1, 2, 9))),
        "interpolated": optax.adam(optax.piecewise_interpolate_schedule("cosine", 0.1, {2: 0.5, 5: 0.2})),
        "several steps": optax.MultiSteps(optax.adam(1e-2), 2),
        "functions": for_each(lambda grad: -0.1 * jax.checkpoint(jax.nn.relu)(with_own_derivative(grad)) + jax.lax.switch(1, [jnp.abs, jnp.sign], grad)),
        "hyperparameters": optax.inject_hyperparams(optax.adam)(1e-2),
        "labels": optax.multi_transform({"adam": optax.adam(1e-2), "sgd": optax.sgd(0.1), "none": optax.set_to_zero()},
                                        {"a": "adam", "factored": "none", "inner": ["sgd", "adam"], "long": "sgd"}),
    }


def for_whole_leaves():
    return {
        "adafactor": optax.adafactor(1e-2),
        "lamb": optax.lamb(1e-2),
        "noise": optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1)),
        "muon": optax.contrib.muon(1e-2),
    }


def mixed(name, leaf):
    return ("whole", 2.0) if leaf.ndim > 1 else "replicated" if name == "inner.0" else "elements"


def custom(update, init=lambda params: ()):
    return types.SimpleNamespace(init=init, update=update)


def for_each(function):
    """A transformation of each leaf for itself."""
    return custom(lambda grads, state, _: (jax.tree.map(function, grads), state))


@jax.custom_vjp
def with_own_derivative(value):
    return jnp.tanh(value)


with_own_derivative.defvjp(lambda value: (value, None), lambda _, back: (back,))


class Unsharded:
    """All ranks update all, from the mean of the same deterministic group."""

    def __init__(self, tx, group, **options):
        self.parallel = DataParallel(make_params(), group, **CAPS, **options)
        self.params, self.tx = self.parallel.params, tx
        self.state = tx.init(self.params)
        self.computed = jax.jit(self.updated)

    def updated(self, grads, state, params):
        updates, state = self.tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def step(self, grads, params):
        params, self.state = self.computed(self.parallel.mean(grads), self.state, params)
        return params


class Shards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(timeout=60, deterministic=True)
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    def make(self, tx, group=None, **options):
        return ShardedOptimizer(tx, make_params(), group or self.group, **CAPS, **options)

    def train(self, optimizer, params, steps=range(6), group=None):
        for step in steps:
            params = optimizer.step(gradients(params, (group or self.group).rank, step), params)
        return params

    def assert_same(self, found, expected, bound=2e-6, group=None):
        """Up to rounding: XLA computes the last elements of an array in another way than the others. All ranks have the same bits."""
        for leaf in jax.tree.leaves(found):
            bits = np.array(leaf).reshape(-1).view("u1")
            all_ranks = np.zeros(((group or self.group).world_size, bits.size), "u1")
            (group or self.group).allgather(all_ranks, bits)
            self.assertTrue((all_ranks == all_ranks[0]).all(), "all ranks have the same")
        self.assertEqual(jax.tree.structure(found), jax.tree.structure(expected))
        for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected)):
            self.assertEqual((one.shape, one.dtype), (other.shape, other.dtype))
            np.testing.assert_allclose(np.asarray(one, "f8"), np.asarray(other, "f8"), rtol=bound, atol=bound, err_msg=str(path))

    def shared_folder(self):
        """A folder of rank 0, which removes it at the end."""
        name = np.zeros(256, "u1")
        if self.rank == 0:
            folder = tempfile.mkdtemp()
            self.addCleanup(shutil.rmtree, folder)
            name[:len(folder)] = np.frombuffer(folder.encode(), "u1")
        self.group.broadcast(name, root=0)
        self.addCleanup(self.group.barrier)  # before that: the last comes first
        return pathlib.Path(name.tobytes().rstrip(b"\0").decode())

    # VALUES

    def test_values_of_ranks_that_update_all(self):
        for name, tx in elementwise().items():
            expected = Unsharded(tx, self.group)
            wanted = self.train(expected, expected.params)
            for owner in ("elements", mixed) if name in ("adamw", "labels") else ("elements",):
                with self.subTest(name, owner=owner):
                    sharded = self.make(tx, owner=owner)
                    self.assert_same(sharded.params, expected.parallel.params, 0)
                    found = self.train(sharded, sharded.params)
                    self.assert_same(found, wanted)
                    self.assert_same(sharded.params, found, 0)
                    sharded.close()
            expected.parallel.close()

    def test_one_process_with_the_mean(self):
        """Without libddp."""
        tx = optax.adamw(1e-2, mask=by_dimensions)
        alone = jax.tree.map(jnp.asarray, make_params())
        state = tx.init(alone)
        for step in range(6):
            each = [gradients(alone, rank, step) for rank in range(self.world)]
            updates, state = tx.update(jax.tree.map(lambda *parts: sum(parts) / len(parts), *each), state, alone)
            alone = optax.apply_updates(alone, updates)
        sharded = self.make(tx)
        self.assert_same(self.train(sharded, sharded.params), alone, 1e-5)

    def test_whole_leaves(self):
        for name, tx in for_whole_leaves().items():
            expected = Unsharded(tx, self.group)
            wanted = self.train(expected, expected.params)
            for owner in ("whole", "replicated") if name == "lamb" else ("whole",):
                with self.subTest(name, owner=owner):
                    sharded = self.make(tx, owner=owner)
                    self.assert_same(self.train(sharded, sharded.params), wanted, 1e-5)
                    sharded.close()
            expected.parallel.close()

    def test_types(self):
        for dtype in (jnp.bfloat16, "f2"):
            tx, values = optax.adam(1e-2, mu_dtype="f4"), {"w": np.arange(1001).astype(dtype) / 100, "b": np.ones((3, 5), dtype)}
            expected = DataParallel(values, self.group)
            sharded, params, alone = ShardedOptimizer(tx, values, self.group), expected.params, expected.params
            update, state = jax.jit(tx.update), tx.init(alone)
            for step in range(3):
                params = sharded.step(gradients(params, self.rank, step), params)
                updates, state = update(expected.mean(gradients(alone, self.rank, step)), state, alone)
                alone = optax.apply_updates(alone, updates)
            self.assert_same(params, alone, 1e-2)
            self.assertEqual(jax.tree.leaves(params)[0].dtype, dtype)

    def test_empty_leaves(self):
        tx, values = optax.adamw(0.1), {"empty": np.zeros((0, 3), "f4"), "w": np.ones(300, "f4")}
        for owner in ("elements", "whole", "replicated"):
            sharded = ShardedOptimizer(tx, values, self.group, owner=owner)
            params = sharded.step({"empty": jnp.zeros((0, 3)), "w": jnp.full(300, self.rank + 1.0)}, values)
            self.assert_same(params, {"empty": jnp.zeros((0, 3)), "w": jnp.full(300, 0.9, "f4")}, 1e-4)

    def test_what_the_program_changes_between_steps(self):
        tx = optax.adam(1e-2)
        expected, sharded = Unsharded(tx, self.group), self.make(tx)
        results = []
        for optimizer in (expected, sharded):
            params = optimizer.params
            for step in range(4):
                params = jax.tree.map(lambda leaf: jnp.clip(leaf, -0.8, 0.8), self.train(optimizer, params, [step]))
            results.append(params)
        self.assert_same(results[1], results[0])

    def test_results_are_the_programs_own(self):
        sharded = ShardedOptimizer(optax.sgd(0.1), {"w": np.ones(1 << 18, "f4")}, self.group)
        first = sharded.step({"w": jnp.ones(1 << 18)}, sharded.params)
        kept = np.array(first["w"])
        for _ in range(3):
            sharded.step({"w": jnp.full(1 << 18, 2.0)}, first)
        np.testing.assert_array_equal(first["w"], kept)
        np.testing.assert_array_equal(kept, np.full(1 << 18, 0.9, "f4"))

    def test_devices(self):
        mesh = Mesh(np.array(jax.devices()), ("d",))
        places = {"parts": NamedSharding(mesh, PartitionSpec("d")), "copies": NamedSharding(mesh, PartitionSpec()), "second": jax.devices()[1]}
        tree = {name: jax.device_put(jnp.full((4, 3), 1.0), place) for name, place in places.items()}
        tree["any"] = jnp.full((4, 3), 1.0)
        sharded = ShardedOptimizer(optax.sgd(1.0), tree, self.group)
        after = sharded.step(jax.tree.map(lambda leaf: leaf * self.rank, tree), tree)
        for result, value in ((after, 1 - (self.world - 1) / 2), (sharded.params, 1 - (self.world - 1) / 2)):
            for name, given in tree.items():
                self.assertEqual((result[name].sharding, result[name].committed), (given.sharding, name != "any"))
                np.testing.assert_array_equal(result[name], np.full((4, 3), value, "f4"))

    # STATE

    def test_a_share_of_the_state(self):
        tx = optax.adamw(1e-2)
        sharded = ShardedOptimizer(tx, {f"w{i}": np.ones((50 + i, 41), "f4") for i in range(9)}, self.group)
        sharded.step(sharded.params, sharded.params)
        mine = sum(leaf.nbytes for leaf in jax.tree.leaves(sharded.state))
        everything = sum(leaf.nbytes for leaf in jax.tree.leaves(tx.init(sharded.params)))
        self.assertLessEqual(mine, everything / self.world * 1.01)
        total = np.array([mine], "i8")
        self.group.allreduce(total)
        self.assertEqual(total[0], everything + 4 * (self.world - 1))  # the count of steps
        self.assertEqual(int(sharded.state[0].count), 1)
        for i in range(9):
            part = sharded.state[0].mu[f"w{i}"]
            self.assertTrue(part is None or part.ndim == 1)

    def test_load_in_another_world(self):
        """In worlds of 3 and of 1."""
        if self.world != 4:
            self.skipTest("for 4 ranks")
        kinds = {"adamw": (elementwise()["adamw"], "elements"), "labels": (elementwise()["labels"], "elements"),
                 "hyperparameters": (elementwise()["hyperparameters"], "elements"), "adafactor": (for_whole_leaves()["adafactor"], "whole"),
                 "noise": (for_whole_leaves()["noise"], "whole"), "several steps": (elementwise()["several steps"], "elements")}
        part = self.group.split(min(self.rank, 3) // 3)
        for name, (tx, owner) in kinds.items():
            with self.subTest(name):
                folder, expected, sharded = self.shared_folder(), Unsharded(tx, self.group), self.make(tx, owner=owner)
                before = self.train(sharded, sharded.params, range(3))
                expected.params = self.train(expected, expected.params, range(3))
                sharded.save(folder, before, note="step 3")
                sharded.close()
                expected.parallel.close()
                after = self.make(tx, part, owner=owner)
                loaded, note = after.load(folder)
                self.assertEqual(note, "step 3")
                self.assert_same(loaded, before, 0)
                continued = Unsharded(tx, part)
                continued.state = expected.state
                wanted = self.train(continued, expected.params, range(3, 6), part)
                self.assert_same(self.train(after, loaded, range(3, 6), part), wanted, 1e-5, part)
                after.close()
                continued.parallel.close()

    def test_load_with_other_owners(self):
        """State that has a number for each element."""
        tx, folder = elementwise()["adamw"], self.shared_folder()
        sharded = self.make(tx)
        saved = self.train(sharded, sharded.params, range(3))
        sharded.save(folder, saved)
        wanted = self.train(sharded, saved, range(3, 5))
        for owner in ("whole", "replicated"):
            after = self.make(tx, owner=owner)
            loaded, _ = after.load(folder)
            self.assert_same(self.train(after, loaded, range(3, 5)), wanted)

    def test_mistakes_in_loading(self):
        sharded, folder = self.make(optax.sgd(0.1)), self.shared_folder()
        with support.raises(self, ddp.NotFoundError, "holds no complete save"):
            sharded.load(folder)
        sharded.save(folder, sharded.params)
        other = self.make(optax.adam(0.1))
        with support.raises(self, ddp.MismatchError, "was saved without 'tx.0."):
            other.load(folder)
        wanted = Unsharded(optax.adam(0.1), self.group)
        self.assert_same(self.train(other, other.params), self.train(wanted, wanted.params))  # nothing is lost

    # NUMBERS THAT ARE NONE

    def test_clipping(self):
        for owner in ("elements", "whole", lambda name, _: "replicated" if name == "long" else "elements"):
            sharded, plain = self.make(optax.sgd(0.1), owner=owner, clip_norm=0.3), Unsharded(optax.sgd(0.1), self.group)
            mean = plain.parallel.mean(gradients(plain.params, self.rank, 0))
            found = sharded.step(gradients(sharded.params, self.rank, 0), sharded.params)
            norm = np.sqrt(sum(np.square(np.asarray(leaf, "f8")).sum() for leaf in jax.tree.leaves(mean)))
            self.assertLess(abs(sharded.grad_norm / norm - 1), 1e-12)
            wanted = jax.tree.map(lambda value, grad: value - 0.1 * grad * np.float32(0.3 / (norm + 1e-6)), plain.params, mean)
            self.assert_same(found, wanted, 1e-6)
            np.testing.assert_allclose(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]),
                                       np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self.with_optax(plain, mean, 0.3))]), rtol=1e-4, atol=1e-6)
            sharded.close()
            plain.parallel.close()
        with support.raises(self, ddp.InvalidStateError, "grad_norm", "without clip_norm"):
            _ = self.make(optax.sgd(0.1)).grad_norm
        with support.raises(self, ValueError, "clip_norm"):
            self.make(optax.sgd(0.1), clip_norm=-1)

    @staticmethod
    def with_optax(plain, mean, bound):
        tx = optax.chain(optax.clip_by_global_norm(bound), optax.sgd(0.1))
        return optax.apply_updates(plain.params, tx.update(mean, tx.init(plain.params))[0])

    def test_not_finite(self):
        """No rank updates anything, and the next step is as if there had been none."""
        for options in ({"clip_norm": 1e9}, {"skip_nonfinite": True}, {"clip_norm": 1e9, "skip_nonfinite": True}):
            tx = optax.adam(1e-2)
            sharded, expected = self.make(tx, **options), Unsharded(tx, self.group)
            params = self.train(sharded, sharded.params, range(2))
            wrong = gradients(params, self.rank, 2)
            if self.rank == self.world - 1:
                wrong["long"] = wrong["long"].at[700].set(jnp.nan)
            for _ in range(2):
                with support.raises(self, ddp.NonfiniteError, "long"):
                    sharded.step(wrong, params)
                self.assert_same(sharded.params, params, 0)
            self.assert_same(self.train(sharded, params, range(2, 4)), self.train(expected, expected.params, range(4)))
        sharded = self.make(optax.sgd(0.1))  # which nobody has asked to look
        self.assertTrue(np.isnan(sharded.step(wrong, params)["long"][700]))

    # REFUSALS

    def refused(self, tx, *words, owner="elements", **options):
        with support.raises(self, ddp.UnsupportedError, "tx: ", *words):
            self.make(tx, owner=owner, **options)

    def test_operations_that_mix_elements(self):
        whole = 'owner="whole"'
        for name, tx in {**for_whole_leaves(), "lars": optax.lars(1e-2), "novograd": optax.novograd(1e-2)}.items():
            with self.subTest(name):
                self.refused(tx, {"noise": "numbers that depend on their place", "muon": "tx: "}.get(name, "tx: reduce_sum"), whole)
        long = {"argmax": lambda grad: grad * jnp.argmax(grad), "concatenate": lambda grad: jnp.concatenate([grad, grad])[:-len(grad)],
                "conv_general_dilated": lambda grad: jax.lax.conv(grad[None, None], jnp.ones((1, 1, 3)), (1,), "SAME")[0, 0],
                "cumsum": jnp.cumsum, "dot_general": lambda grad: grad * (grad @ grad), "fft": lambda grad: jnp.fft.fft(grad).real,
                "gather": lambda grad: grad[jnp.arange(len(grad))], "reduce_max": lambda grad: grad - grad.max(), "rev": jnp.flip,
                "reshape": lambda grad: grad.reshape(-1, 1).ravel(), "sort": jnp.sort, "slice": lambda grad: grad - grad[:1],
                "scan": lambda grad: jax.lax.scan(lambda carry, each: (carry + each, carry), 0.0, grad)[1],
                "while": lambda grad: jax.lax.while_loop(lambda each: jnp.any(each > 1), lambda each: each / 2, grad)}
        earlier = {"conv_general_dilated": "broadcast_in_dim"}  # of the operations that a function is made of, the first is named
        for name, operation in long.items():
            with self.subTest(name), support.raises(self, ddp.UnsupportedError, f"tx: {earlier.get(name, name)} ", "elements of long", whole):
                self.make(custom(lambda grads, state, _, operation=operation: ({**grads, "long": operation(grads["long"])}, state)))
        self.refused(for_each(lambda grad: grad * jnp.arange(grad.size, dtype="f4").reshape(grad.shape)), "tx: mul", "depend on their place", whole)
        self.refused(for_each(lambda grad: jax.lax.cond(grad.sum() > 0, lambda each: each, lambda each: -each, grad)), "reduce_sum")
        self.refused(custom(lambda grads, state, params: (grads, jax.tree.map(jnp.sum, grads)), lambda params: jax.tree.map(jnp.sum, params)), "reduce_sum")

    def test_operations_that_mix_leaves(self):
        clip = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
        self.refused(clip, "tx: reduce_sum", "elements of a", "clip_norm=")
        self.refused(clip, "tx: add computes with a and ", "clip_norm=", owner="whole")
        self.refused(optax.apply_if_finite(optax.sgd(0.1), 3), "tx: ", owner="whole")
        self.refused(optax.contrib.prodigy(), "tx: ", owner="whole")

        # Through the state, from one step to the next.
        self.refused(custom(lambda grads, state, params: ({**grads, "inner": [grads["inner"][0], grads["inner"][1] + state]}, grads["inner"][0][0]),
                            lambda params: jnp.zeros(())), "tx: ", "inner.0", "inner.1", owner="whole")
        sharded = self.make(custom(lambda grads, state, params: ({**grads, "inner": [state, grads["inner"][1]]}, grads["inner"][0]),
                                   lambda params: jnp.zeros(5)), owner="whole")
        params = sharded.params
        for times in (1, 2):
            np.testing.assert_allclose(sharded.step(params, params)["inner"][0], times * params["inner"][0], rtol=1e-6)
        sharded = self.make(clip, owner="replicated")
        expected = Unsharded(clip, self.group)
        self.assert_same(self.train(sharded, sharded.params), self.train(expected, expected.params), 1e-6)

    def test_other_mistakes(self):
        with support.raises(self, TypeError, "tx", "init and update"):
            self.make("adam")
        with support.raises(self, TypeError, "owner", "expected"):
            self.make(optax.sgd(0.1), owner=3)
        with support.raises(self, ValueError, "'mine' is unknown"):
            self.make(optax.sgd(0.1), owner="mine")
        self.refused(custom(lambda grads, state, params: (grads, (state,)), lambda params: jnp.zeros(())), "another structure")
        with support.raises(self, ddp.InvalidStateError, "verify_interval", "copies"):
            self.make(optax.sgd(0.1), verify_interval=2)
        if self.world > 1:
            with support.raises(self, ddp.MismatchError, f"rank {self.world - 1}", "hyperparameters"):
                self.make(optax.adam(0.1 + 0.1 * (self.rank == self.world - 1)))
        sharded = self.make(optax.sgd(0.1))
        params = sharded.params
        with support.raises(self, ValueError, "params", "lacks a"):
            sharded.step(params, {name: params[name] for name in params if name != "a"})
        with support.raises(self, ValueError, "grads: long is float32[3]", "new ShardedOptimizer"):
            sharded.step({**params, "long": jnp.zeros(3)}, params)
        with support.raises(self, TypeError, "JAX traces a", "step()"):
            jax.jit(sharded.step)(params, params)
        with support.raises(self, ddp.InvalidStateError, "average_parameters", "copies"):
            sharded.context.average_parameters()
        with support.raises(self, ddp.InvalidStateError, "set_group", "load()"):
            sharded.context.set_group(self.group)
        with support.raises(self, ddp.InvalidStateError, "no_sync"), sharded.context.no_sync():
            pass
        expected = Unsharded(optax.sgd(0.1), self.group)
        self.assert_same(self.train(sharded, params), self.train(expected, expected.params))  # nothing is lost

    def test_a_rank_that_fails_in_its_update(self):
        with ddp.Group(name="breaks", timeout=30) as group:
            sharded = self.make(optax.sgd(0.1), group)
            params = self.train(sharded, sharded.params, range(2), group)
            fails = self.rank == self.world - 1
            if fails:
                sharded._step_of_pieces = unittest.mock.Mock(side_effect=ZeroDivisionError("no memory is left"))
            with self.assertRaises(ZeroDivisionError if fails else ddp.AbortedError) as caught:
                self.train(sharded, params, range(2), group)
            if not fails:
                self.assertIn("no memory is left", str(caught.exception))


if support.RANK < 0:
    VALUES = "values_of_ranks_that_update_all whole_leaves clipping load_with_other_owners not_finite a_share_of_the_state"
    for count, tests in (1, VALUES), (2, ""), (3, VALUES), (4, "load_in_another_world"):
        chosen = " ".join(f"Shards.test_{name}" for name in tests.split())
        print(support.run_ranks(count, sys.executable, "-B", *sys.argv, env={"DDP_TESTS": chosen}, timeout=400))
else:
    warnings.simplefilter("error")
    support.main()
