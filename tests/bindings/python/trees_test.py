"""Trees of arrays: ddp.numpy.DataParallel, and ddp.jax.DataParallel where JAX is installed.

    trees_test.py numpy|jax MINIMAL       on 1, 2 and 3 ranks, and the example for JAX
"""
import collections
import importlib
import importlib.util
import sys
import unittest

import support

KIND = sys.argv[1]
for name in {"numpy", KIND}:
    if importlib.util.find_spec(name) is None:
        print(f"skipped: {name} is not installed")
        sys.exit()

import numpy as np  # noqa: E402  (only where it is)

import ddp  # noqa: E402

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

    def loss(params, x, y):
        (w0, b0), (w1, b1) = params["layers"]
        return jnp.mean((params["scale"][0] * (jnp.maximum(x @ w0 + b0, 0) @ w1 + b1) - y) ** 2)

    class Jax:
        DataParallel = importlib.import_module("ddp.jax").DataParallel
        gradients = staticmethod(jax.jit(jax.grad(loss)))
        step = staticmethod(lambda params, grads: jax.tree.map(lambda w, g: w - 0.1 * g, params, grads))

    return Jax


FRAMEWORK = Numpy if KIND == "numpy" else with_jax()


def flat(tree):
    (w0, b0), (w1, b1), scale = *tree["layers"], tree["scale"][0]
    return np.concatenate([np.asarray(leaf).ravel() for leaf in (w0, b0, w1, b1, scale)])


class Trees(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group()

    def test_weights_are_those_of_one_process(self):
        mine = slice(self.group.rank * PART, (self.group.rank + 1) * PART)
        parallel = FRAMEWORK.DataParallel(make_params(float(self.group.rank)), self.group, bucket_cap=100)
        params, alone = parallel.params, make_params()
        self.assertTrue(np.array_equal(flat(params), flat(alone)), "every rank starts from rank 0's")
        for part, whole in zip(batches(self.group, mine), batches(self.group, None)):
            grads = parallel.mean(FRAMEWORK.gradients(params, *part))
            self.assertIsInstance(grads["layers"][0], Layer)
            self.assertIsNone(grads["scale"][1])
            params = FRAMEWORK.step(params, grads)
            alone = FRAMEWORK.step(alone, FRAMEWORK.gradients(alone, *whole))
        self.assertLess(np.abs(flat(params) - flat(alone)).max(), 1e-5)
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
        with support.raises(self, ValueError, "layers.1."):
            parallel.mean(wrong)
        self.assertTrue(np.allclose(flat(parallel.mean(make_params())), flat(make_params())))
        with support.raises(self, ValueError, "params", "no arrays"):
            FRAMEWORK.DataParallel({"a": []}, self.group)

    @unittest.skipUnless(KIND == "jax", "of JAX")
    def test_jax(self):
        import jax
        from jax import numpy as jnp

        half = FRAMEWORK.DataParallel({"w": jnp.ones((3,), jnp.bfloat16)}, self.group)
        found = half.mean({"w": jnp.full((3,), self.group.rank + 1, jnp.bfloat16)})["w"]
        self.assertEqual((found.dtype, float(found[0])), (jnp.bfloat16, (self.group.world_size + 1) / 2))
        single = FRAMEWORK.DataParallel(jnp.ones((2,)), self.group)  # a tree of one leaf
        self.assertEqual(single.mean(jnp.ones((2,))).tolist(), [1, 1])
        with support.raises(self, TypeError, "w", "jax.jit"):
            jax.jit(half.mean)({"w": jnp.ones((3,), jnp.bfloat16)})


if support.RANK < 0:
    for count in (1, 2, 3):
        print(support.run_ranks(count, sys.executable, "-B", *sys.argv))
    if KIND == "jax" and importlib.util.find_spec("optax"):
        assert support.run_ranks(2, sys.executable, "-B", sys.argv[2]).count("y = 3.000 -2.000 x") == 2
    sys.exit()
unittest.main(argv=sys.argv[:1], verbosity=1 if support.RANK <= 0 else 0)
