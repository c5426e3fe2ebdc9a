"""ddp.keras with a backend of Keras on 2 and 3 ranks: the weights of model.fit against those of one process with the global batches.

    keras_test.py BACKEND           DDP_TORCH_PYTHON names a Python with PyTorch, if this one has none
"""
import itertools
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
BACKEND = sys.argv[1]
os.environ["KERAS_BACKEND"] = BACKEND

import support


def find_torch():
    """Lets this Python find the PyTorch of another one of the same version."""
    python = os.environ.get("DDP_TORCH_PYTHON")
    if BACKEND == "torch" and python:
        told = subprocess.run([python, "-c", "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_path('purelib'))"],
                              stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.strip()
        version, folder = told.rsplit(" ", 1)
        if version == str(sys.version_info[:2]):
            sys.path.append(folder)


support.need("keras")
find_torch()
support.need(BACKEND)
if BACKEND != "tensorflow":
    sys.modules["tensorflow"] = None  # Keras imports it where it is, which takes longer than the tests

import keras
import numpy as np
from keras import layers

import ddp
import ddp.keras

sys.path.append(str(pathlib.Path(os.environ["DDP_SOURCE"]) / "examples" / "python"))
import idx

GROUP = ddp.Group(timeout=60) if support.RANK >= 0 else None
RANK, SIZE = (GROUP.rank, GROUP.world_size) if GROUP else (0, 1)
ROWS = [5, 3, 4][:SIZE]  # of each rank's part of a global batch
JITS = (False,) if BACKEND == "torch" else (False, True)


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self._batches = batches

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, index):
        return self._batches[index]


def samples(count, seed=0, features=6, outputs=3):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, features)).astype("f4"), draw.normal(size=(count, outputs)).astype("f4")


def parts(arrays, rows=None):
    """Arrays in global batches, as one process has them, and as this rank has its part of them."""
    rows = rows or ROWS
    whole, own = [], []
    for first in range(0, len(arrays[0]) - sum(rows) + 1, sum(rows)):
        begin = first + sum(rows[:RANK])
        whole.append(tuple(array[first:first + sum(rows)] for array in arrays))
        own.append(tuple(array[begin:begin + rows[RANK]] for array in arrays))
    return Batches(whole), Batches(own)


def net(seed, extra=()):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), *extra, layers.Dense(3)])


def fit(model, data, epochs=2, **options):
    return model.fit(data, epochs=epochs, shuffle=False, verbose=0, **options).history


def with_mark(x, rows):
    """x with another column: 1 for the samples of rank 0, which are the first ones of each global batch."""
    marks = (np.arange(len(x)) % sum(ROWS) < rows).astype("f4")
    return np.concatenate([x, marks[:, None]], axis=1)


def branches(seed):
    """A model that uses a layer for the samples of rank 0 only. Other ranks do not call it."""
    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="model")
            self.used, self.branch = layers.Dense(3, name="used"), layers.Dense(3, name="branch")

        def build(self, shape):
            self.used.build((None, 6))
            self.branch.build((None, 6))
            self.built = True

        def call(self, inputs):
            x, marks = inputs[:, :6], inputs[:, 6:]
            if hasattr(self, "_ddp_parallel") and RANK > 0:
                return self.used(x)
            return self.used(x) + marks * self.branch(x)

    keras.utils.set_random_seed(seed)
    model = Model()
    model.build((None, 7))
    return model


class KerasCase(unittest.TestCase):
    def setUp(self):
        GROUP.check()

    def check(self, weights, expected, rtol=1e-4, atol=2e-6):
        for one, other in zip(weights, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)

    def check_on_all(self, arrays):
        """They have the same bits on all ranks."""
        for array in arrays:
            mine = np.array(array, order="C")
            theirs = mine.copy()
            GROUP.broadcast(theirs.reshape(-1).view(np.uint8), 0)
            np.testing.assert_array_equal(mine.reshape(-1).view(np.uint8), theirs.reshape(-1).view(np.uint8))

    def compare(self, data, compile, make=net, epochs=2, rtol=1e-4, atol=2e-6, **options):
        """Trains alone and on all ranks, which begin apart. Returns both models and their histories."""
        whole, own = data
        alone = make(0)
        compile(alone)
        expected = fit(alone, whole, epochs, **options)
        model = make(RANK)
        compile(model)
        self.assertIs(ddp.keras.distribute(model, GROUP), model)
        history = fit(model, own, epochs, **options)
        self.check(model.get_weights(), alone.get_weights(), rtol, atol)
        self.check_on_all([*model.get_weights(), *(keras.ops.convert_to_numpy(each) for each in model.optimizer.variables)])
        self.check_on_all([np.array(history[name]) for name in sorted(history)])
        return alone, model, expected, history


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Training(KerasCase):
    def test_digits(self):
        """A small CNN, with batches of different sizes on the ranks."""
        images, labels = idx.load(pathlib.Path(os.environ["DDP_SOURCE"]) / "examples" / "data" / "mnist", "train")
        images = images.reshape(-1, 28, 28, 1).astype("f4")
        count = 40 * sum(ROWS)

        def make(seed):
            keras.utils.set_random_seed(seed)
            return keras.Sequential([keras.Input((28, 28, 1)), layers.Conv2D(6, 5, strides=2, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
                                     layers.Dense(10)])

        for jit in JITS if BACKEND == "tensorflow" else JITS[-1:]:
            with self.subTest(jit=jit):
                _, _, expected, history = self.compare(
                    parts((images[:count], labels[:count])),
                    lambda model: model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                                                metrics=["accuracy"], jit_compile=jit), make, rtol=2e-4, atol=2e-5)
                np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
                np.testing.assert_allclose(history["accuracy"], expected["accuracy"], rtol=1e-5)
                self.assertLess(history["loss"][-1], 1)

    def test_uneven(self):
        """Ranks have different numbers of batches; the last one is short. The logs are those of all samples, validation included."""
        x, y = samples(60)
        counts = [3, 5, 4][:SIZE]
        batches = {rank: [(x[first:first + 2], y[first:first + 2]) for first in range(rank * 20, rank * 20 + 2 * counts[rank], 2)] for rank in range(SIZE)}
        batches[1][-1] = tuple(each[:1] for each in batches[1][-1])
        whole = [tuple(np.concatenate(each) for each in zip(*(batches[rank][step] for rank in range(SIZE) if step < counts[rank])))
                 for step in range(max(counts))]
        to_test = samples(30, 1)
        own = tuple(each[:12] if RANK == 0 else each[12 + RANK:12 + RANK + 1] for each in to_test)
        everyones = tuple(np.concatenate([each[:12], *(each[12 + rank:13 + rank] for rank in range(1, SIZE))]) for each in to_test)
        alone, model = net(0), net(RANK)
        for each in alone, model:
            each.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        expected = fit(alone, Batches(whole), validation_data=everyones)
        ddp.keras.distribute(model, GROUP)
        history = fit(model, Batches(batches[RANK]), validation_data=own)
        self.check(model.get_weights(), alone.get_weights())
        self.check_on_all(model.get_weights())
        self.assertEqual(sorted(history), sorted(expected))
        for name, values in history.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-4, err_msg=name)

    def test_sample_weights(self):
        x, y = samples(10 * sum(ROWS))
        weights = np.random.default_rng(2).uniform(0, 3, len(x)).astype("f4")
        for reduction, jit in zip(("sum_over_batch_size", "mean_with_sample_weight"), itertools.cycle(JITS)):
            with self.subTest(reduction=reduction):
                self.compare(parts((x, y, weights)), lambda model: model.compile(
                    keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction=reduction), jit_compile=jit))

    def test_optimizers(self):
        """The optimizer does to the means what it does to gradients."""
        data = parts(samples(9 * sum(ROWS)))
        for jit, make in zip(itertools.cycle(JITS), (
                lambda: keras.optimizers.SGD(0.1, momentum=0.5, global_clipnorm=0.3),
                lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3, clipnorm=0.2),
                lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=4),
                lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.5), loss_scale_factor=8.0))):
            with self.subTest(optimizer=make().get_config()):
                self.compare(data, lambda model: model.compile(make(), "mse", jit_compile=jit))

    def test_mixed_precision(self):
        """A gradient that is not finite on one rank is a step that all ranks skip."""
        whole, own = parts(samples(6 * sum(ROWS)))
        for policy, jit in (*(("mixed_float16", jit) for jit in JITS), ("mixed_bfloat16", JITS[-1])):
            with self.subTest(policy=policy, jit=jit):
                keras.config.set_dtype_policy(policy)
                try:
                    alone, model = net(0), net(RANK)
                finally:
                    keras.config.set_dtype_policy("float32")
                for each in alone, model:
                    each.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
                fit(alone, whole)
                ddp.keras.distribute(model, GROUP)
                fit(model, own)
                self.check(model.get_weights(), alone.get_weights(), 0.02, 0.01)
                self.check_on_all(model.get_weights())
                if policy == "mixed_bfloat16":
                    continue
                self.assertIsInstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
                before, scale = model.get_weights(), float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
                x, y = own[0]
                fit(model, Batches([(x, np.full_like(y, 1e6) if RANK == SIZE - 1 else y)]), 1)
                self.check(model.get_weights(), before, 0, 0)
                self.assertEqual(float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale)), scale / 2)

    def test_unused(self):
        """A variable that the model does not use stays as it is: where one process has no gradient, the ranks have no mean of zeros."""
        class Model(keras.Model):
            def __init__(self):
                super().__init__(name="model")
                self.used, self.unused = layers.Dense(3, name="used"), layers.Dense(3, name="unused")

            def build(self, shape):
                self.used.build(shape)
                self.unused.build(shape)
                self.built = True

            def call(self, inputs):
                return self.used(inputs)

        def make(seed):
            keras.utils.set_random_seed(seed)
            model = Model()
            model.build((None, 6))
            return model

        for jit in JITS:
            self.compare(parts(samples(4 * sum(ROWS))), lambda model: model.compile(keras.optimizers.SGD(0.1, weight_decay=0.01), "mse", jit_compile=jit, run_eagerly=not jit),
                         make)

    def test_used_on_one_rank(self):
        """PyTorch takes the mean with zeros."""
        if BACKEND == "torch":
            self.compare(parts((with_mark(samples(4 * sum(ROWS))[0], ROWS[0]), samples(4 * sum(ROWS))[1])),
                         lambda model: model.compile(keras.optimizers.SGD(0.1), "mse"), branches)

    def test_embedding(self):
        """Gradients of rows."""
        def make(seed):
            keras.utils.set_random_seed(seed)
            return keras.Sequential([keras.Input((4,), dtype="int32"), layers.Embedding(9, 5), layers.Flatten(), layers.Dense(3)])

        count = 4 * sum(ROWS)
        x = np.random.default_rng(3).integers(0, 9, (count, 4)).astype("i4")
        self.compare(parts((x, samples(count)[1])), lambda model: model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse"), make)

    def test_steps_per_execution(self):
        if BACKEND == "torch":
            return  # Keras refuses it
        self.compare(parts(samples(6 * sum(ROWS))), lambda model: model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=3))

    def test_own_train_step(self):
        """The gradients that a train_step of the program applies."""
        if BACKEND != "tensorflow":
            return
        import tensorflow as tf

        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = layers.Dense(3)

            def call(self, inputs):
                return self.layer(inputs)

            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
                return {"loss": loss}

        def make(seed):
            keras.utils.set_random_seed(seed)
            model = Own()
            model(np.zeros((1, 6), "f4"))
            return model

        for jit in JITS:
            self.compare(parts(samples(4 * sum(ROWS))), lambda model: model.compile(keras.optimizers.SGD(0.1), jit_compile=jit), make)


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Fit(KerasCase):
    def test_traces(self):
        """Frameworks trace a step as often as without libddp, and not again in another fit."""
        for jit in JITS:
            def counted(compile):
                traces = []

                def loss(y, y_pred):
                    traces.append(1)
                    return keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)

                model = net(0)
                model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit)
                compile(model)
                x, y = samples(8 * 4)
                counts = []
                for _ in range(3):
                    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
                    counts.append(len(traces))
                return counts

            plain, ours = counted(lambda model: None), counted(lambda model: ddp.keras.distribute(model, GROUP))
            if BACKEND == "torch":
                self.assertEqual(ours, plain)
                continue
            if BACKEND != "jax" or jit:
                self.assertEqual(ours[0], ours[2])
            self.assertLessEqual(ours[2], plain[2])

    def test_state(self):
        """Moving averages become rank 0's at the end of an epoch. Seeds stay each rank's own."""
        model = net(RANK, [layers.BatchNormalization(), layers.Dropout(0.5)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ddp.keras.distribute(model, GROUP)
        seeds = [each for each in model.variables if not any(each is weight for weight in model.weights)]
        self.assertEqual(len(seeds), 1)
        x, y = samples(24, RANK)
        fit(model, Batches([(x + RANK, y)]), 1)
        self.check_on_all(model.get_weights())
        drawn = np.zeros((SIZE, 2), "i8")
        GROUP.allgather(drawn.reshape(-1), keras.ops.convert_to_numpy(seeds[0]).astype("i8"))
        self.assertEqual(len({tuple(each) for each in drawn}), SIZE)

    def test_stop(self):
        """One rank ends the epoch, and the others follow at its end."""
        model = net(RANK)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ddp.keras.distribute(model, GROUP)
        seen = []

        def stop(batch, logs):
            if RANK == 1 and batch == 1:
                model.stop_training = True

        data = parts(samples(4 * sum(ROWS)))[1]
        fit(model, data, 5, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop, on_epoch_end=lambda epoch, logs: seen.append(epoch))])
        self.assertEqual(seen, [0])
        self.check_on_all(model.get_weights())

    def test_callbacks(self):
        """Callbacks of the program get the logs of all ranks."""
        model = net(RANK)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ddp.keras.distribute(model, GROUP)
        seen = []
        one = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"]))
        history = fit(model, Batches([samples(4, RANK)]), 2, callbacks=one)
        self.assertEqual(seen, history["loss"])
        self.check_on_all([np.array(seen)])
        with self.assertRaisesRegex(TypeError, "a list of callbacks"):
            fit(model, Batches([samples(4, RANK)]), 2, callbacks=keras.callbacks.CallbackList([]))

    def test_saved(self):
        """A saved model loads as a plain one."""
        model = ddp.keras.distribute(net(RANK), GROUP)
        model.compile(keras.optimizers.Adam(0.01), "mse")  # after distribute
        data = parts(samples(2 * sum(ROWS)))[1]
        fit(model, data)
        self.check_on_all(model.get_weights())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            loaded = keras.models.load_model(path)
        self.assertIs(type(loaded.optimizer), type(keras.optimizers.Adam(0.01)))
        self.check(loaded.get_weights(), model.get_weights(), 0, 0)
        if RANK == 0:
            fit(loaded, data)  # alone
        GROUP.barrier()

    def test_changed_model(self):
        """Layers that the program freezes, and compiles the model again."""
        whole, own = parts(samples(4 * sum(ROWS)))
        alone, model = net(0), ddp.keras.distribute(net(RANK), GROUP)
        for each, data in (alone, whole), (model, own):
            each.compile(keras.optimizers.SGD(0.1), "mse")
            fit(each, data)
            each.layers[0].trainable = False
            each.compile(keras.optimizers.SGD(0.2), "mse")
            fit(each, data)
            each.compile(each.optimizer, "mae")  # the same one
            fit(each, data)
        self.check(model.get_weights(), alone.get_weights())


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Refused(KerasCase):
    """The ranks go on afterwards."""

    def refused(self, kind, words, model, data=None):
        ddp.keras.distribute(model, GROUP)
        with self.assertRaisesRegex(kind, words):
            fit(model, data or Batches([samples(4)]))
        GROUP.barrier()

    def test_models(self):
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3 if RANK == 0 else 4, name="layer"), layers.Dense(3)], name="net")
        model.compile("sgd", "mse")
        words = r"model: rank 1 has another model than rank 0, or another optimizer: rank 0 has net/layer/kernel, float32\[6, 3\]"
        self.refused(ddp.MismatchError, words + (r", and rank 1 has net/layer/kernel, float32\[6, 4\]" if RANK == 1 else ""), model)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="one" if RANK == 0 else "other")], name="net")
        model.compile("sgd", "mse")
        self.refused(ddp.MismatchError, "rank 0 has net/one/kernel", model)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="one")], name="net")
        model.compile("sgd" if RANK == 0 else "adam", "mse")
        self.refused(ddp.MismatchError, "rank 1 has another model than rank 0, or another optimizer", model)

    def test_values(self):
        """A rank changes a weight of its own."""
        model = net(0)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ddp.keras.distribute(model, GROUP)

        def change(epoch, logs):
            if RANK == 1:
                model.layers[0].kernel.assign(model.layers[0].kernel + 1)

        with self.assertRaisesRegex(ddp.MismatchError, "kernel: rank 1 has another value than rank 0"):
            fit(model, Batches([samples(4)]), callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=change)])
        GROUP.barrier()

    def test_epochs(self):
        model = net(0)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        ddp.keras.distribute(model, GROUP)
        with self.assertRaisesRegex(ddp.UnevenInputsError, "fit: rank 1 has ended, and rank 0 begins another epoch"):
            fit(model, Batches([samples(4)]), 1 if RANK == 1 else 2)
        GROUP.barrier()

    def test_losses(self):
        for loss, words in ((keras.losses.MeanSquaredError(reduction="sum"), "loss: a sum over a batch"),
                            ([keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), "mse"], "Give all losses the same reduction")):
            inputs = keras.Input((6,))
            model = keras.Model(inputs, layers.Dense(3)(inputs) if not isinstance(loss, list) else [layers.Dense(3)(inputs), layers.Dense(3)(inputs)])
            model.compile("sgd", loss)
            x, y = samples(4)
            self.refused(ddp.UnsupportedError, words, model, Batches([(x, (y, y) if isinstance(loss, list) else y)]))

    def test_on_one_rank(self):
        """The others say which rank it was."""
        model = net(0)
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum" if RANK == 1 else "sum_over_batch_size"))
        self.refused(ddp.UnsupportedError, "loss: a sum over" if RANK == 1 else "model: rank 1 cannot train it", model)

    def test_arguments(self):
        model = ddp.keras.distribute(net(0), GROUP)
        model.compile("sgd", "mse")
        with self.assertRaisesRegex(ddp.InvalidStateError, "averaged in model.fit only"):
            model.train_on_batch(*samples(4))
        with self.assertRaisesRegex(ddp.InvalidStateError, "distributed already"):
            ddp.keras.distribute(model, GROUP)
        with self.assertRaisesRegex(TypeError, "a keras.Model is expected, not int"):
            ddp.keras.distribute(1)
        if BACKEND == "torch":
            model = net(0)
            model.compile("sgd", "mse", jit_compile=True)
            self.refused(ddp.UnsupportedError, "model: jit_compile=True is torch.compile", model)
        if BACKEND == "tensorflow":
            unbuilt = keras.Sequential([layers.Dense(3)])
            unbuilt.compile("sgd", "mse")
            self.refused(ddp.InvalidStateError, "model: it has no variables yet", unbuilt)


@unittest.skipIf(support.RANK >= 0, "starts ranks of its own")
class Jobs(unittest.TestCase):
    def test_example(self):
        """The program of docs/keras.md."""
        example = pathlib.Path(os.environ["DDP_SOURCE"]) / "examples" / "python" / "keras_minimal.py"
        self.assertEqual(support.run_ranks(2, sys.executable, "-B", __file__, BACKEND, "run", example).count("y = 3.000 -2.000 x"), 2)

    def test_lost_rank(self):
        """A rank that dies, or that raises an exception, raises one on the other ranks."""
        for way, words in (("die", "RankFailedError: rank 1"), ("raise", "AbortedError: rank 1 .*model.fit on rank 1 raised ZeroDivisionError"),
                           *([("branch", "ValueError: model/branch/.*: there is no gradient of it on this rank")] if BACKEND == "tensorflow" else [])):
            with self.subTest(way=way), self.assertRaises(AssertionError) as caught:
                support.run_ranks(2, sys.executable, "-B", __file__, BACKEND, way)
            self.assertRegex(str(caught.exception), words)


def lose(way):
    if way == "branch":
        model = ddp.keras.distribute(branches(0), GROUP)
        model.compile("sgd", "mse")
        x, y = samples(8)
        fit(model, Batches([(with_mark(x, 8), y)]))
    model = net(RANK)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    ddp.keras.distribute(model, GROUP)

    def end(batch, logs):
        if RANK == 1 and batch == 2:
            os._exit(3) if way == "die" else 1 // 0

    fit(model, parts(samples(6 * sum(ROWS)))[1], callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=end)])


if __name__ == "__main__":
    asked = sys.argv[2:]
    sys.argv = sys.argv[:1]
    if asked[:1] == ["run"]:
        runpy.run_path(asked[1])
    elif asked:
        lose(asked[0])
    elif support.RANK < 0:
        for count, tests in ((2, ""), (3, "Training.test_digits Training.test_uneven")):
            print(support.run_ranks(count, sys.executable, "-B", __file__, BACKEND, timeout=700, env={"DDP_TESTS": tests}))
        unittest.main()
    else:
        support.main()
