"""ddp.tinygrad.DataParallel gets the weights of one process.

    tinygrad_test.py MINIMAL        on 2 ranks, and the example MINIMAL on 2
"""
import sys
import unittest

import support

support.need("numpy", "tinygrad")

import numpy as np  # noqa: E402  (only where it is)
from tinygrad import Tensor, dtypes, nn  # noqa: E402
from tinygrad.helpers import Context as Settings  # noqa: E402

import ddp  # noqa: E402
from ddp.tinygrad import DataParallel  # noqa: E402

STEPS, PART = 4, 4  # PART: samples on each rank


class Network:
    def __init__(self, seed):
        Tensor.manual_seed(seed)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.again = self.first  # the same tensors under two names
        self.norm = nn.BatchNorm(8)

    def __call__(self, x):
        return self.last(self.first(x).relu())


def weights(model):
    return np.concatenate([tensor.numpy().ravel() for tensor in nn.state.get_parameters([model.first, model.last])])


def train(model, group, part, parallel=None):
    optimizer = nn.optim.SGD(nn.state.get_parameters([model.first, model.last]), lr=0.1)
    generator = np.random.default_rng(2)
    with Settings(TRAINING=1):
        for _ in range(STEPS):
            x, y = (generator.standard_normal((PART * group.world_size, size)).astype("f4") for size in (5, 3))
            optimizer.zero_grad()
            (model(Tensor(x[part])) - Tensor(y[part])).square().mean().backward()
            if parallel:
                parallel.average()
            optimizer.step()


class Trained:
    """What is trained of a network."""

    def __init__(self, network):
        self.first, self.again, self.last = network.first, network.again, network.last


class Tinygrad(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group()

    def test_weights_are_those_of_one_process(self):
        model, alone = Network(1 + self.group.rank), Network(1)
        parallel = DataParallel(Trained(model), self.group)
        self.assertTrue(np.array_equal(weights(model), weights(alone)), "every rank starts from rank 0's")
        train(model, self.group, slice(self.group.rank * PART, (self.group.rank + 1) * PART), parallel)
        train(alone, self.group, slice(None))
        self.assertLess(np.abs(weights(model) - weights(alone)).max(), 1e-5)
        parallel.close()

    def test_scalars(self):
        for factor in (Tensor(2.0 + self.group.rank), Tensor([2.0 + self.group.rank]).reshape(())):
            self.check_one(factor, lambda factor: factor * (3.0 + self.group.rank), (), dtypes.float32)

    def test_bfloat16(self):
        """On tinygrad's emulator, as not each compiler has this type."""
        weight = Tensor(np.full((5, 3), 2 + self.group.rank, "f4"), device="PYTHON").cast(dtypes.bfloat16).realize()
        self.check_one(weight, lambda weight: weight.cast(dtypes.float32).sum() * (3.0 + self.group.rank), (5, 3), dtypes.bfloat16)

    def check_one(self, tensor, loss, shape, dtype):
        """Of a tensor that is 2 on rank 0, and whose gradient is 3 more than the rank."""
        parallel = DataParallel([tensor], self.group)
        np.testing.assert_array_equal(tensor.numpy(), np.full(shape, 2))
        for _ in range(2):
            tensor.grad = None
            with Settings(TRAINING=1):
                loss(tensor).backward()
            parallel.average()
            for each in (tensor, tensor.grad):
                self.assertEqual((each.shape, each.dtype), (shape, dtype))
            np.testing.assert_array_equal(tensor.grad.numpy(), np.full(shape, 3 + (self.group.world_size - 1) / 2))
        parallel.close()

    def test_errors(self):
        parallel = DataParallel(Network(1), self.group)
        with support.raises(self, ddp.MissingGradientError, "first.weight", "average()"):
            parallel.average()
        with support.raises(self, ValueError, "model"):
            DataParallel([], self.group)
        self.group.barrier()


if support.RANK < 0:
    print(support.run_ranks(2, sys.executable, "-B", *sys.argv))
    assert support.run_ranks(2, sys.executable, "-B", sys.argv[1]).count("y = 3.000 -2.000 x") == 2
    sys.exit()
unittest.main(argv=sys.argv[:1], verbosity=1 if support.RANK <= 0 else 0)
