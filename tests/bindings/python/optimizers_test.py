"""The optimizers of ddp/optimizer.h on ranks: with shards the values are those without, bit for bit, and ranks that differ get an error.

    optimizers_test.py     on 1, 2, 3 and 5 ranks
"""
import unittest

import support

support.need("numpy")

import numpy  # noqa: E402

import ddp  # noqa: E402
from ddp import _ddp  # noqa: E402

SHAPES = [(40, 25), (3,), (257,), (129, 61), (1,), (5, 20, 10), (8, 8), (9001,), (17, 1)]
OPTIMIZERS = [("sgd", "lr=0.01,momentum=0.9,nesterov=1,weight_decay=0.1"), ("adamw", "lr=0.01"), ("lamb", "lr=0.01"), ("muon", "lr=0.02")]
ELEMENTS, WHOLE, REPLICATED = _ddp.DDP_OWNER_ELEMENTS, _ddp.DDP_OWNER_WHOLE, _ddp.DDP_OWNER_REPLICATED


class Training:
    def __init__(self, group, name, options, shard, owners=(), cap=1 << 20):
        self.context, self.shard, self.rank = ddp.Context(group, shard=shard, bucket_cap=cap, first_bucket_cap=cap), shard, group.rank
        self.values = [numpy.sin(numpy.arange(numpy.prod(shape)) * 0.7).astype(numpy.float32).reshape(shape) for shape in SHAPES]
        self.gradients = [numpy.zeros_like(value) for value in self.values]
        for i, (value, gradient) in enumerate(zip(self.values, self.gradients)):
            self.context.register(f"p{i}", value, gradient)
            if owners:
                _ddp.ddp_set_owner(self.context._handle, i, owners[i % len(owners)], 0.0)
        self.context.commit()
        self.optimizer = _ddp.ddp_optimizer_create(self.context._handle, name, options)

    def backward(self, step):
        for i in reversed(range(len(SHAPES))):
            if self.shard:
                _ddp.ddp_wait_value(self.context._handle, i)
            self.gradients[i][...] = self.values[i] * (self.rank + step) + numpy.cos(self.values[i] * (self.rank + 1))
            self.context.grad_ready(i)
        self.context.finalize()

    def step(self, step, scale=0.7):
        self.backward(step)
        _ddp.ddp_optimizer_step(self.optimizer, scale)
        if self.shard:
            _ddp.ddp_publish(self.context._handle)

    def result(self):
        for step in range(5):
            self.step(step)
        for i in range(len(SHAPES) if self.shard else 0):
            _ddp.ddp_wait_value(self.context._handle, i)
        return b"".join(value.tobytes() for value in self.values)


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(deterministic=True)

    def test_shards_train_to_the_same_bits(self):
        for name, options in OPTIMIZERS:
            want = Training(self.group, name, options, False).result()
            for owners, cap in ((), 1 << 20), ((), 4096), ((WHOLE, ELEMENTS, REPLICATED), 4096), ((WHOLE,), 1 << 20), ((WHOLE, REPLICATED), 64):
                if name == "muon" and (not owners or ELEMENTS in owners):
                    continue
                self.assertEqual(Training(self.group, name, options, True, owners, cap).result(), want, f"{name}, {owners}, {cap}")

    def test_one_owner_of_a_matrix(self):
        training = Training(self.group, "muon", "", True)
        training.backward(0)
        with self.assertRaisesRegex(Exception, "'p0' is updated as a whole matrix"):
            _ddp.ddp_optimizer_step(training.optimizer, 1.0)

    def test_once_a_step(self):
        for shard in False, True:
            training = Training(self.group, "adamw", "", shard)
            with self.assertRaisesRegex(Exception, "no step has given means"):
                _ddp.ddp_optimizer_step(training.optimizer, 1.0)
            training.step(0)
            with self.assertRaisesRegex(Exception, "has sent the values" if shard else "have been applied already"):
                _ddp.ddp_optimizer_step(training.optimizer, 1.0)

    def test_zz_a_scale_of_its_own(self):
        if self.group.world_size == 1:
            return
        training = Training(self.group, "adamw", "", False)
        training.step(0, 1.0 + self.group.rank)
        with self.assertRaisesRegex(Exception, "their optimizers have different settings"):
            training.step(1)


support.main((1, 2, 3, 5))
