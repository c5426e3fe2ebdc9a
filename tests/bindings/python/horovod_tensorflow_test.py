"""ddp.horovod.tensorflow and .keras on 2 ranks: tensors, tapes and optimizers, eager and in a tf.function, against NumPy and one process
with the global batch. Every rank runs all tests in the same order."""
import os
import pathlib
import sys
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import support

support.need("tensorflow")

import numpy as np
import tensorflow as tf

import ddp.horovod.keras
import ddp.horovod.tensorflow as hvd
import ddp.horovod.tensorflow.keras as hvdk

SAMPLES = 6  # of a rank


def samples(step, rank):
    generator = np.random.default_rng([step, rank])
    return generator.normal(size=(SAMPLES, 4)).astype("f4"), generator.normal(size=(SAMPLES, 3)).astype("f4")


def net(seed=0):
    layers = [tf.keras.layers.Dense(8, activation="tanh"), tf.keras.layers.Dense(3)]
    model = tf.keras.Sequential([tf.keras.Input((4,)), *layers])
    generator = np.random.default_rng(seed)
    model.set_weights([generator.normal(size=weight.shape).astype("f4") for weight in model.get_weights()])
    return model


def both_ways(function):
    """The results of an eager call and of a tf.function."""
    return [function(), tf.function(function)()]


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Tensors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def test_collectives(self):
        rank, size = self.rank, self.size
        total, root = sum(range(1, size + 1)), size - 1
        for dtype in ("float16", "bfloat16", "float32", "int32", "int64", "uint8"):
            mine = tf.cast(tf.reshape(tf.range(6), (2, 3)), dtype) * tf.cast(rank + 1, dtype)
            for result in both_ways(lambda: hvd.allreduce(mine, op=hvd.Sum)):
                self.assertEqual((result.dtype, result.shape), (mine.dtype, mine.shape))
                np.testing.assert_array_equal(tf.cast(result, tf.float32), np.arange(6).reshape(2, 3) * total)
            for result in both_ways(lambda: hvd.broadcast(mine, root)):
                np.testing.assert_array_equal(tf.cast(result, tf.float32), np.arange(6).reshape(2, 3) * size)
        for result in both_ways(lambda: hvd.allgather(tf.fill((rank + 1, 2), rank))):
            np.testing.assert_array_equal(result, np.repeat(np.arange(size), np.arange(1, size + 1) * 2).reshape(-1, 2))
        for result in both_ways(lambda: hvd.alltoall(tf.range(2 * size) + 10 * rank)):
            np.testing.assert_array_equal(result, np.concatenate([np.arange(2) + 2 * rank + 10 * other for other in range(size)]))
        for result, received in both_ways(lambda: hvd.alltoall(tf.fill([size + 1], rank), splits=[2] + [1] * (size - 1))):
            np.testing.assert_array_equal(received, [2 if rank == 0 else 1] * size)
            np.testing.assert_array_equal(result, np.repeat(np.arange(size), received))
        for result in both_ways(lambda: hvd.reducescatter(tf.ones((size, 3)) * (rank + 1), op=hvd.Sum)):
            np.testing.assert_array_equal(result, np.full((1, 3), total))
        for results in both_ways(lambda: hvd.grouped_allreduce([tf.fill([2], float(rank)), tf.ones([3])])):
            np.testing.assert_allclose(results[0], [(size - 1) / 2] * 2)
            np.testing.assert_array_equal(results[1], [1] * 3)
        compressed = hvd.allreduce(tf.fill([2], 0.1 + rank), compression=hvd.Compression.fp16)
        np.testing.assert_allclose(compressed, [0.1 + (size - 1) / 2] * 2, rtol=2e-3)
        self.assertEqual(hvd.allgather_object(rank), list(range(size)))

    def test_sparse(self):
        slices = tf.IndexedSlices(tf.fill((2, 2), self.rank + 1.), tf.constant([self.rank, 4]), tf.constant([5, 2]))
        expected = sum(np.eye(5)[[rank, 4]].sum(0)[:, None] * np.full((5, 2), rank + 1.) for rank in range(self.size))
        for result in both_ways(lambda: tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))):
            np.testing.assert_allclose(result, expected)
        np.testing.assert_allclose(tf.convert_to_tensor(hvd.allreduce(slices)), expected / self.size)

    def test_gradients(self):
        own = np.arange(8.).reshape(4, 2)
        everyones = sum(own + rank for rank in range(self.size))

        def gradient(function, shape=(4, 2)):
            def call():
                x = tf.ones(shape)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    result = function(x)
                    loss = tf.reduce_sum(result * (tf.reshape(tf.range(tf.size(result), dtype=tf.float32), tf.shape(result)) + self.rank))
                return tape.gradient(loss, x)
            return both_ways(call)

        for result in gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)):
            np.testing.assert_allclose(result, everyones)
        for result in gradient(lambda x: hvd.broadcast(x, 1)):
            np.testing.assert_allclose(result, everyones / self.size if self.rank == 1 else np.zeros((4, 2)))
        gathered = sum(np.arange(8. * self.size).reshape(-1, 2) + rank for rank in range(self.size)) / self.size
        for result in gradient(hvd.allgather):
            np.testing.assert_allclose(result, gathered[4 * self.rank:4 * self.rank + 4])
        rows = 4 // self.size
        for result in gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)):
            parts = [np.arange(2. * rows).reshape(-1, 2) + rank for rank in range(self.size)]
            np.testing.assert_allclose(result, np.concatenate(parts) * self.size)
        for result in gradient(hvd.alltoall, (self.size, 2)):
            np.testing.assert_allclose(result, np.stack([np.arange(2.) + 2 * self.rank + rank for rank in range(self.size)]))

    def test_errors(self):
        def differ():
            return hvd.allreduce(tf.ones(2 + self.rank), name="t")

        for call in (differ, tf.function(differ)):
            with self.assertRaisesRegex(Exception, r"allreduce\.t: ranks differ in the shape: rank 0 has"):
                call()
        self.assertEqual(hvd.allreduce(tf.constant(1), op=hvd.Sum).numpy(), self.size)
        for kind in (hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
            with self.assertRaises(kind):
                differ()
        for kind in (ValueError, tf.errors.InvalidArgumentError):
            with self.assertRaisesRegex(kind, "splits"):
                hvd.alltoall(tf.ones(2), splits=[9] * self.size)
        with tf.Graph().as_default(), self.assertRaisesRegex(NotImplementedError, "a session runs collectives in any order"):
            hvd.allreduce(tf.constant(1))
        for result, expected in ((hvd.size_op(), self.size), (hvd.rank_op(), self.rank), (hvd.process_set_included_op(), 1)):
            self.assertEqual(result.numpy(), expected)

    def test_variables(self):
        variables = [tf.Variable(tf.fill([2], float(self.rank))), tf.Variable(self.rank)]
        hvd.broadcast_variables(variables, root_rank=1)
        np.testing.assert_array_equal(variables[0], [1, 1])
        self.assertIs(hvd.broadcast_(variables, 0)[1], variables[1])
        variables[1].assign(self.rank)
        tf.function(lambda: hvd.broadcast_variables(variables, root_rank=1))()
        self.assertEqual(variables[1].numpy(), 1)


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def alone(self, optimizer, steps, passes=1):
        model = net()
        for step in range(0, steps, passes):
            batches = [samples(part, rank) for part in range(step, step + passes) for rank in range(self.size)]
            x, y = (np.concatenate(each) for each in zip(*batches))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return model.get_weights()

    def same(self, weights, expected):
        for one, other in zip(weights, expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    def test_tape(self):
        for wrap in (lambda function: function, tf.function):
            model, optimizer = net(), tf.keras.optimizers.SGD(0.1, momentum=0.9)
            optimizer.build(model.trainable_variables)

            @wrap
            def step(x, y):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x) - y))
                tape = hvd.DistributedGradientTape(tape)
                optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

            for number in range(4):
                step(*map(tf.constant, samples(number, self.rank)))
            self.same(model.get_weights(), self.alone(tf.keras.optimizers.SGD(0.1, momentum=0.9), 4))

    def test_optimizer(self):
        for passes in (1, 2):
            for make in (lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), lambda: tf.keras.optimizers.Adam(0.01)):
                model = net()
                optimizer = hvdk.DistributedOptimizer(make(), backward_passes_per_step=passes, average_aggregated_gradients=True)
                self.assertIsInstance(optimizer, type(make()))
                for number in range(4):
                    x, y = samples(number, self.rank)
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(tf.square(model(x) - y))
                    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
                self.same(model.get_weights(), self.alone(make(), 4, passes))
                copied = type(optimizer).from_config(optimizer.get_config())
                again = net()
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(again(tf.ones((1, 4)))) * (self.rank + 1)
                copied.apply_gradients(zip(tape.gradient(loss, again.trainable_variables), again.trainable_variables))
                everyones = hvd.allgather_object(again.get_weights())
                self.same(everyones[1], everyones[0])
        self.assertEqual(ddp.horovod.keras.allreduce(self.rank, op=hvd.Sum), sum(range(self.size)))
        self.assertIs(ddp.horovod.keras.DistributedOptimizer, hvdk.DistributedOptimizer)
        with self.assertRaisesRegex(TypeError, "an optimizer of Keras"):
            hvdk.DistributedOptimizer(object())
        with self.assertRaisesRegex(ValueError, "one already"):
            hvdk.DistributedOptimizer(optimizer)

    def test_fit(self):
        """Ranks begin apart, and end with the same weights. The learning rate and the metrics are those of the callbacks."""
        model = net(self.rank)
        x, y = samples(0, self.rank)
        model.compile(hvdk.DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.5)), "mse")
        rates = []

        def look(*_, **__):
            rates.append(float(np.asarray(model.optimizer.learning_rate)))

        record = tf.keras.callbacks.LambdaCallback(on_train_batch_end=look)
        history = model.fit(x, y, batch_size=2, epochs=4, verbose=0, shuffle=False, callbacks=[
            hvdk.callbacks.BroadcastGlobalVariablesCallback(0), hvdk.callbacks.MetricAverageCallback(),
            hvdk.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, steps_per_epoch=3),
            hvdk.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=3), record])
        expected = [0.1 * ((step + 1) / 6 * (self.size - 1) + 1) / self.size for step in range(6)] + [0.1] * 3 + [0.1] * 3
        np.testing.assert_allclose(rates, expected, rtol=1e-5)
        everyones = hvd.allgather_object((model.get_weights(), history.history["loss"]))
        for weights, losses in everyones[1:]:
            for one, other in zip(weights, everyones[0][0]):
                np.testing.assert_array_equal(one, other)
            self.assertEqual(losses, everyones[0][1])

    def test_elastic_state(self):
        """A job that is not elastic saves and restores, too; horovod_elastic_test.py has one that is."""
        model = net(self.rank)
        model.compile(hvdk.DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.5)), "mse", run_eagerly=True)
        model.optimizer.build(model.trainable_variables)
        state = hvdk.elastic.KerasState(model, batch=self.rank, epoch=self.rank)
        state.sync()
        everyones = hvd.allgather_object((model.get_weights(), state.epoch))
        self.assertEqual([epoch for _, epoch in everyones], [0] * self.size)
        self.same(everyones[1][0], everyones[0][0])
        commits = []
        state.register_reset_callbacks([lambda: commits.append(0)])
        model.fit(*samples(0, self.rank), batch_size=3, epochs=2, verbose=0, callbacks=[
            hvdk.elastic.UpdateEpochStateCallback(state), hvdk.elastic.UpdateBatchStateCallback(state),
            hvdk.elastic.CommitStateCallback(state, 2)])
        self.assertEqual((state.epoch, state.batch, commits), (2, 0, []))
        kept = model.get_weights()
        model.set_weights(net(5).get_weights())
        state.epoch = 9
        state.restore()
        self.assertEqual(state.epoch, 2)
        self.same(model.get_weights(), kept)
        variable = tf.Variable(float(self.rank))
        state = hvd.elastic.TensorFlowState([variable], step=3)
        variable.assign(7)
        state.restore()
        self.assertEqual(variable.numpy(), self.rank)

    def test_saved_model(self):
        model = net()
        model.compile(hvdk.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            plain = tf.keras.models.load_model(path)  # as where libddp is not
            self.assertIs(type(plain.optimizer), tf.keras.optimizers.Adam)
            loaded = hvdk.load_model(path)
        self.assertNotEqual(type(loaded.optimizer), tf.keras.optimizers.Adam)
        loaded.fit(*samples(0, self.rank), epochs=1, verbose=0)
        everyones = hvd.allgather_object(loaded.get_weights())
        for one, other in zip(everyones[0], everyones[1]):
            np.testing.assert_array_equal(one, other)


if __name__ == "__main__":
    if support.RANK < 0:  # a program that imports TensorFlow before ddp
        example = pathlib.Path(os.environ["DDP_SOURCE"]) / "examples" / "python" / "horovod_keras.py"
        assert support.run_ranks(2, sys.executable, "-B", example).count("y = 3.000 -2.000 x") == 2
    support.main((2,))
