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


class Small:
    """With a scalar, and with weights in bfloat16, on tinygrad's emulator: not each compiler has this type."""

    device = "PYTHON"

    def __init__(self, rank):
        self.factor = Tensor(2.0 + rank, device=self.device)
        self.weight = Tensor(np.full((5, 3), 1 + rank, "f4"), device=self.device).cast(dtypes.bfloat16).realize()

    def __call__(self, x):
        return (x.cast(dtypes.bfloat16) @ self.weight).cast(dtypes.float32).sum() * self.factor


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

    def test_scalars_and_bfloat16(self):
        rank, world = self.group.rank, self.group.world_size
        model = Small(rank)
        parallel = DataParallel(model, self.group)
        self.assertEqual((model.factor.item(), model.weight.dtype), (2, dtypes.bfloat16))
        np.testing.assert_array_equal(model.weight.numpy(), np.ones((5, 3)))
        for _ in range(2):
            model.factor.grad = model.weight.grad = None
            with Settings(TRAINING=1):
                model(Tensor(np.full((1, 5), 1 + rank, "f4"), device=model.device)).backward()
            parallel.average()
            mean = (world + 1) / 2
            self.assertEqual((model.factor.grad.shape, model.factor.grad.item()), ((), 15 * mean))
            self.assertEqual(model.weight.grad.dtype, dtypes.bfloat16)
            np.testing.assert_array_equal(model.weight.grad.numpy(), np.full((5, 3), 2 * mean))
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
