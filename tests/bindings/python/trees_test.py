"""Trees of arrays: ddp.numpy.DataParallel, and ddp.jax.DataParallel where JAX is installed.

    trees_test.py numpy|jax MINIMAL       NumPy on 1 and 3 ranks, JAX on 3; the examples for JAX, MINIMAL and those beside it, on 2
    trees_test.py played FAKE_DEVICE COMPILER FOLDER      JAX on 1 to 3 ranks, as if on GPUs (played/xla.cc)
"""
import collections
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import unittest
import unittest.mock

import support

KIND = sys.argv[1]
if support.RANK >= 0:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
support.need("numpy", *({"jax": ("jax", "optax"), "played": ("jax",)}.get(KIND, ())))

import numpy as np  # noqa: E402  (only where it is)

import ddp  # noqa: E402
import jobs  # noqa: E402

Layer = collections.namedtuple("Layer", "weight bias")
STEPS, PART = 5, 4  # PART: samples on each rank


def make_params(change=0.0):
    generator = np.random.default_rng(1)
    draw = lambda *shape: (generator.standard_normal(shape) + change).astype("f4")  # noqa: E731
    return {"layers": [Layer(draw(5, 8), draw(8)), Layer(draw(8, 3), draw(3))], "scale": (draw(), None)}


def batches(group, part):
    generator = np.random.default_rng(2)
    for _ in range(STEPS):
        x, y = (generator.standard_normal((PART * group.world_size, size)).astype("f4") for size in (5, 3))
        yield (x, y) if part is None else (x[part], y[part])


class Numpy:
    """Gradients by hand."""

    DataParallel = importlib.import_module("ddp.numpy").DataParallel

    @staticmethod
    def gradients(params, x, y):
        (w0, b0), (w1, b1), scale = *params["layers"], params["scale"][0]
        hidden = np.maximum(x @ w0 + b0, 0)
        out = hidden @ w1 + b1
        wrong = (2 / y.size * (scale * out - y)).astype("f4")
        back = scale * wrong
        inner = (back @ w1.T) * (hidden > 0)
        # A gradient that lies in another order of memory is taken, too.
        return {"layers": [Layer(np.asfortranarray(x.T @ inner), inner.sum(0)), Layer(hidden.T @ back, back.sum(0))],
                "scale": (np.asarray((out * wrong).sum(), "f4"), None)}

    @staticmethod
    def step(params, grads):
        return {"layers": [Layer(*(w - np.float32(0.1) * g for w, g in zip(*pair))) for pair in zip(params["layers"], grads["layers"])],
                "scale": (np.asarray(params["scale"][0] - np.float32(0.1) * grads["scale"][0]), None)}


def with_jax():
    import jax
    from jax import numpy as jnp

    def mean_square(params, x, y):
        (w0, b0), (w1, b1) = params["layers"]
        return jnp.mean((params["scale"][0] * (jnp.maximum(x @ w0 + b0, 0) @ w1 + b1) - y) ** 2)

    class Jax:
        DataParallel = importlib.import_module("ddp.jax").DataParallel
        loss = staticmethod(mean_square)
        gradients = staticmethod(jax.jit(jax.grad(mean_square)))
        step = staticmethod(lambda params, grads: jax.tree.map(lambda w, g: w - 0.1 * g, params, grads))

    return Jax


PLAYED = None
if KIND == "played":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
    import xla

    FAKE_DEVICE, COMPILER, FOLDER = sys.argv[2:]
    library = xla.build(COMPILER, FAKE_DEVICE, FOLDER)
    if support.RANK >= 0:
        PLAYED = xla.load(library, 1 + int(os.environ["WORLD_SIZE"]) % 3)
FRAMEWORK = Numpy if KIND == "numpy" else with_jax()


def flat(tree):
    (w0, b0), (w1, b1), scale = *tree["layers"], tree["scale"][0]
    return np.concatenate([np.asarray(leaf).ravel() for leaf in (w0, b0, w1, b1, scale)])


class ForAll:
    """Tests of both frameworks."""

    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group()

    def test_weights_are_those_of_one_process(self):
        mine = slice(self.group.rank * PART, (self.group.rank + 1) * PART)
        parallel = FRAMEWORK.DataParallel(make_params(float(self.group.rank)), self.group, bucket_cap=100)
        params, alone = parallel.params, make_params()
        self.assertTrue(np.array_equal(flat(params), flat(alone)), "every rank starts from rank 0's")
        self.assertEqual([parameter.name for parameter in parallel.context.parameters],
                         ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "scale.0"])
        for part, whole in zip(batches(self.group, mine), batches(self.group, None)):
            grads = parallel.mean(FRAMEWORK.gradients(params, *part))
            self.assertIsInstance(grads["layers"][0], Layer)
            self.assertIsNone(grads["scale"][1])
            params = FRAMEWORK.step(params, grads)
            alone = FRAMEWORK.step(alone, FRAMEWORK.gradients(alone, *whole))
        self.assertLess(np.abs(flat(params) - flat(alone)).max(), 1e-5)
        parallel.close()

    def test_order_of_keys(self):
        """Dictionaries may have any order: names say what belongs together."""
        names = ("b", "a", "c")[::-1 if self.group.rank else 1]
        parallel = FRAMEWORK.DataParallel({name: np.full(2, ord(name), "f4") for name in names}, self.group)
        for order in (names, sorted(names)):
            means = parallel.mean({name: np.full(2, ord(name) + self.group.rank, "f4") for name in order})
            self.assertEqual({name: float(means[name][0]) for name in means},
                             {name: ord(name) + (self.group.world_size - 1) / 2 for name in names})
            if KIND == "numpy":
                self.assertEqual((list(parallel.params), list(means)), (list(names), list(order)))
        parallel.close()

    def test_results_are_the_programs_own(self):
        parallel = FRAMEWORK.DataParallel(make_params(), self.group)
        first = parallel.mean(make_params(1))
        kept = flat(first)
        parallel.mean(make_params(2))
        self.assertTrue(np.array_equal(flat(first), kept))

    def test_errors_lose_nothing(self):
        parallel = FRAMEWORK.DataParallel(make_params(), self.group)
        wrong = make_params()
        wrong["layers"][1] = Layer(wrong["layers"][1].weight.T, wrong["layers"][1].bias)
        with support.raises(self, ValueError, "layers.1.", "3, 8", "8, 3"):
            parallel.mean(wrong)
        wrong["layers"].pop()
        with support.raises(self, ValueError, "grads", "lacks layers.1."):
            parallel.mean(wrong)
        wrong = make_params()
        wrong["more"] = wrong["scale"]
        with support.raises(self, ValueError, "grads", "params has no more.0"):
            parallel.mean(wrong)
        with support.raises(self, ValueError, "grads", "types of its branches differ"):
            parallel.mean({**make_params(), "layers": tuple(wrong["layers"])})
        wrong = make_params()
        wrong["scale"] = (wrong["scale"][0].astype("f2"), None)
        with support.raises(self, ValueError, "scale.0 is float16[], and was float32[] in params"):
            parallel.mean(wrong)
        self.assertTrue(np.allclose(flat(parallel.mean(make_params())), flat(make_params())))
        with support.raises(self, ValueError, "params", "no arrays"):
            FRAMEWORK.DataParallel({"a": []}, self.group)
        with support.raises(self, ValueError, "verify_interval", "first values"):
            FRAMEWORK.DataParallel(make_params(), self.group, verify_interval=2)
        with support.raises(self, ValueError, "shard", "first values", "ddp.Context(group, shard=True)"):
            FRAMEWORK.DataParallel(make_params(), self.group, shard=True)


class ForJax:
    """Tests of what NumPy's trees do not have."""

    def test_jax(self):
        import jax
        from jax import numpy as jnp

        half = FRAMEWORK.DataParallel({"w": jnp.ones((3,), jnp.bfloat16)}, self.group)
        found = half.mean({"w": jnp.full((3,), self.group.rank + 1, jnp.bfloat16)})["w"]
        self.assertEqual((found.dtype, float(found[0])), (jnp.bfloat16, (self.group.world_size + 1) / 2))
        single = FRAMEWORK.DataParallel(jnp.ones((2,)), self.group)  # a tree of one leaf
        self.assertEqual(single.mean(jnp.ones((2,))).tolist(), [1, 1])
        with support.raises(self, TypeError, "JAX traces w", "outside of jax.jit"):
            jax.jit(half.mean)({"w": jnp.ones((3,), jnp.bfloat16)})

    def test_devices(self):
        """Results lie where the program's arrays do: in parts, copied, on the second device, or anywhere."""
        import jax
        from jax import numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("d",))
        places = {"parts": NamedSharding(mesh, PartitionSpec("d")), "copies": NamedSharding(mesh, PartitionSpec()),
                  "second": jax.devices()[1]}
        tree = {name: jax.device_put(jnp.full((4, 3), self.group.rank + 1.0), place) for name, place in places.items()}
        tree["any"] = jnp.full((4, 3), self.group.rank + 1.0)
        parallel = FRAMEWORK.DataParallel(tree, self.group)
        for result, value in ((parallel.params, 1), (parallel.mean(tree), (self.group.world_size + 1) / 2)):
            for name, given in tree.items():
                self.assertEqual((result[name].sharding, result[name].committed), (given.sharding, name != "any"))
                np.testing.assert_array_equal(result[name], np.full((4, 3), value))
        for jitted in (jax.jit, lambda function: function):
            gradients = jitted(jax.grad(lambda params: sum(jnp.sum(leaf ** 2) for leaf in parallel.overlap(params).values())))
            with support.raises(self, NotImplementedError, "overlap()", "2 devices", "Leave out"):
                gradients({name: jax.device_put(leaf, places["copies"]) for name, leaf in tree.items()})
        several = jax.vmap(jax.grad(lambda params, x: jnp.sum(parallel.overlap(params)["any"] * x)), in_axes=(None, 0))
        with support.raises(self, NotImplementedError, "overlap()", "jax.vmap", "Leave out"):
            several(tree, jnp.ones(2))
        self.assertEqual(float(parallel.mean(tree)["any"][0, 0]), (self.group.world_size + 1) / 2)  # nothing had begun
        parallel.close()

    def overlapping(self):
        import jax

        parallel = FRAMEWORK.DataParallel(make_params(), self.group, bucket_cap=100, first_bucket_cap=100)
        return parallel, jax.jit(jax.grad(lambda params, x, y: FRAMEWORK.loss(parallel.overlap(params), x, y)))

    def test_overlap(self):
        """Every bucket is on its way before mean(), and the means are those without overlap."""
        import jax

        parallel, gradients = self.overlapping()
        launched = []

        def hook(group, bucket):
            launched.append(bucket.index)
            return group.allreduce(bucket.buffer, bucket.op, async_op=True)

        parallel.context.set_hook(hook)
        for x, y in batches(self.group, slice(self.group.rank * PART, (self.group.rank + 1) * PART)):
            launched.clear()
            grads = jax.block_until_ready(gradients(parallel.params, x, y))
            self.assertEqual(launched, list(range(len(parallel.context.bucket_sizes()))))
            self.assertGreater(len(launched), 1)
            means = flat(parallel.mean(grads))
            np.testing.assert_array_equal(means, flat(parallel.mean(FRAMEWORK.gradients(parallel.params, x, y))))
        parallel.close()

    def test_overlap_of_a_part(self):
        """Gradients that the backward pass does not compute come with mean(); and types of JAX's own."""
        import jax
        from jax import numpy as jnp

        parallel = FRAMEWORK.DataParallel({"used": jnp.ones((3,), jnp.bfloat16), "unused": jnp.ones((2,))}, self.group)
        gradients = jax.jit(jax.grad(lambda params, x: jnp.sum(parallel.overlap(params)["used"] * x)))
        for _ in range(2):
            means = parallel.mean(gradients(parallel.params, jnp.bfloat16(self.group.rank + 1)))
            self.assertEqual(means["used"].tolist(), [(self.group.world_size + 1) / 2] * 3)
            self.assertEqual(means["unused"].tolist(), [0, 0])

    def test_mistakes_in_overlap(self):
        import jax

        parallel, gradients = self.overlapping()
        x, y = next(batches(self.group, slice(0, PART)))
        with support.raises(self, ValueError, "params", "layers.1."):
            parallel.overlap({**make_params(), "layers": make_params()["layers"][:1]})
        first = jax.block_until_ready(gradients(parallel.params, x, y))
        with support.raises(self, ValueError, "has a gradient of it already", "mean() after each backward pass"):
            parallel.mean(gradients(parallel.params, x, y))
        parallel.discard()
        again = parallel.mean(gradients(parallel.params, x, y))  # the same samples on every rank
        np.testing.assert_allclose(flat(again), flat(first), rtol=1e-6)
        parallel.close()
        with self.assertRaisesRegex(Exception, "closed"):
            jax.block_until_ready(gradients(parallel.params, x, y))


class ForPlayed:
    """Tests of JAX on a GPU that XLA's player is."""

    def test_gradients_stay_on_the_gpu(self):
        """In two calls of a step, or one for each gradient more; and no command buffer may contain them."""
        import jax

        parallel, gradients = self.overlapping()
        self.assertEqual({parameter.device for parameter in parallel.context.parameters}, {"cuda:0"})
        with unittest.mock.patch.object(parallel.context, "put", side_effect=AssertionError("through the host")):
            x, y = next(batches(self.group, slice(0, PART)))
            for function, calls in ((gradients, 6), (FRAMEWORK.gradients, 1)):
                before = PLAYED.played_calls()
                means = parallel.mean(jax.block_until_ready(function(parallel.params, x, y)))
                np.testing.assert_allclose(flat(means), flat(FRAMEWORK.gradients(parallel.params, x, y)), rtol=1e-6)
                self.assertEqual(PLAYED.played_calls() - before, calls)
        self.assertEqual(PLAYED.played_traits(), 0)
        parallel.close()

    def test_donation(self):
        import jax

        parallel, gradients = self.overlapping()
        for function in (FRAMEWORK.gradients, gradients):
            for x, y in batches(self.group, slice(self.group.rank * PART, (self.group.rank + 1) * PART)):
                kept = parallel.mean(FRAMEWORK.gradients(parallel.params, x, y))
                given = function(parallel.params, x, y)
                means = parallel.mean(given, donate=True)
                self.assertTrue(all(leaf.is_deleted() for leaf in jax.tree.leaves(given)))
                np.testing.assert_array_equal(flat(means), flat(kept))
        parallel.close()

    def test_types(self):
        import jax
        from jax import numpy as jnp

        tree = {name: jnp.full((2, 3), 2 * self.group.rank, name) for name in ("float16", "bfloat16", "float32", "int32", "uint8", "complex64")}
        tree["none"] = jnp.zeros((0, 3))
        parallel = FRAMEWORK.DataParallel(tree, self.group, reduction="sum")
        self.assertEqual(float(parallel.params["bfloat16"][0, 0]), 0)
        with support.raises(self, TypeError, "inner.w", "uint32"):
            FRAMEWORK.DataParallel({"inner": {"w": jnp.ones(3, "uint32")}}, self.group)
        for name, total in parallel.mean(tree).items():
            self.assertEqual((total.dtype, total.devices()), (tree[name].dtype, {jax.devices()[0]}))
            np.testing.assert_array_equal(total, np.full(tree[name].shape, self.group.world_size * (self.group.world_size - 1)))
        parallel.close()

    def test_gradients_elsewhere(self):
        import jax

        parallel = FRAMEWORK.DataParallel({"w": np.ones(3, "f4")}, self.group)
        with support.raises(self, ValueError, "grads: w is on", "params were on"):
            parallel.mean({"w": jax.device_put(np.ones(3, "f4"), jax.devices()[1])})
        self.assertEqual(parallel.mean({"w": np.ones(3, "f4")})["w"].tolist(), [1, 1, 1])  # nothing had begun

    def test_errors_are_libddps(self):
        """An exception in a call of compiled code comes out of mean() as it was, and not as an error of JAX's."""
        tree = {"w": np.ones(3, "f4")}
        with ddp.Group(name="breaks") as group:
            fails = group.rank == group.world_size - 1
            with self.assertRaises(ZeroDivisionError if fails else ddp.CallbackError):  # elsewhere perhaps before mean()
                parallel = FRAMEWORK.DataParallel(tree, group)
                if fails:
                    parallel.context.set_hook(lambda group, bucket: 1 // 0)
                parallel.mean(tree)
        parallel = FRAMEWORK.DataParallel(tree, self.group)
        parallel.close()
        with support.raises(self, ddp.InvalidStateError, "closed"):
            parallel.mean(tree)

    def test_without_a_module(self):
        """Gradients go through the host, and libddp says why."""
        problem = ddp.UnsupportedError("there is no module")
        with unittest.mock.patch.object(ddp._ddp, "ddp_device_count", side_effect=problem), self.assertWarnsRegex(UserWarning, "no module"):
            parallel = FRAMEWORK.DataParallel({"w": np.ones(3, "f4")}, self.group)
        self.assertEqual(parallel.context.parameters[0].device, "cpu")
        self.assertEqual(parallel.mean({"w": np.full(3, self.group.rank, "f4")})["w"][0], (self.group.world_size - 1) / 2)


class Trees(ForAll, *([ForJax] if KIND != "numpy" else []), *([ForPlayed] if KIND == "played" else []), unittest.TestCase):
    pass


if support.RANK < 0:
    for count in {"numpy": (1, 3), "jax": (3,), "played": (1, 2, 3)}[KIND]:  # JAX takes seconds to start
        print(support.run_ranks(count, sys.executable, "-B", *sys.argv))
    if KIND == "jax":
        minimal = pathlib.Path(sys.argv[2])
        assert support.run_ranks(2, sys.executable, "-B", minimal).count("y = 3.000 -2.000 x") == 2
        trained = support.run_ranks(2, sys.executable, "-B", minimal.with_name("jax_mnist.py"))
        print(trained)
        assert jobs.accuracy(trained) > 88 and float(re.search(r"difference (\S+)", trained).group(1)) < 1e-5
        if importlib.util.find_spec("flax"):
            trained = support.run_ranks(2, sys.executable, "-B", minimal.with_name("jax_flax.py"))
            print(trained)
            assert jobs.accuracy(trained) > 88
    sys.exit()
unittest.main(argv=sys.argv[:1], verbosity=2 if support.RANK <= 0 else 0)
