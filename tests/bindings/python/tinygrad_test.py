"""ddp.tinygrad.DataParallel gets the weights of one process.

    tinygrad_test.py MINIMAL                on 2 ranks, and the example MINIMAL on 2
    tinygrad_test.py --played FAKE_DEVICE   on 2 and 3 ranks, as if on GPUs (played/tinygrad_cuda.py)
"""
import pathlib
import sys
import unittest
import unittest.mock

import support

support.need("numpy", "tinygrad")

import numpy as np  # noqa: E402  (only where it is)
from tinygrad import Tensor, TinyJit, dtypes, nn  # noqa: E402
from tinygrad.helpers import Context as Settings  # noqa: E402

import ddp  # noqa: E402
from ddp.tinygrad import DataParallel  # noqa: E402

PLAYED = None
if sys.argv[1] == "--played":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
    import tinygrad_cuda

    if support.RANK >= 0:
        PLAYED = tinygrad_cuda.load(sys.argv[2])
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
    """The trained tensors of a network."""

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

    def test_gradients_stay_on_the_gpu(self):
        if not PLAYED:
            self.skipTest("there is no GPU")
        model = Network(1 + self.group.rank)
        parallel = DataParallel(Trained(model), self.group)
        self.assertEqual({parameter.device for parameter in parallel.context.parameters}, {"cuda:0"})
        before = PLAYED.copies
        with unittest.mock.patch.object(parallel.context, "put", side_effect=AssertionError("through the host")):
            train(model, self.group, slice(self.group.rank * PART, (self.group.rank + 1) * PART), parallel)
        self.assertEqual(PLAYED.copies - before, 2 * 4 * STEPS)
        parallel.close()

    def test_scalars(self):
        for factor in (Tensor(2.0 + self.group.rank), Tensor([2.0 + self.group.rank]).reshape(())):
            self.check_one(factor, lambda factor: factor * (3.0 + self.group.rank), (), dtypes.float32)

    def test_bfloat16(self):
        """On tinygrad's emulator, as not each compiler has this type."""
        weight = Tensor(np.full((5, 3), 2 + self.group.rank, "f4"), device="PYTHON").cast(dtypes.bfloat16).realize()
        self.check_one(weight, lambda weight: weight.cast(dtypes.float32).sum() * (3.0 + self.group.rank), (5, 3), dtypes.bfloat16)

    def check_one(self, tensor, loss, shape, dtype):
        """Averages a tensor that is 2 on rank 0, and whose gradient is 3 more than the rank."""
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

    def jitted(self, way):
        """Weights after a training whose backward pass is under TinyJit, and those of one process. way: how the gradients come to
        average(), and from there to the optimizer."""
        found = []
        for group in (self.group, support.alone()):
            model = Trained(Network(1))
            parameters = nn.state.get_parameters([model.first, model.last])
            parallel = DataParallel(model, group)
            optimizer = nn.optim.SGD(parameters, lr=0.1)

            @TinyJit
            def backward(x, y):
                for parameter in parameters:
                    parameter.grad = None
                loss = (model.last(model.first(x).relu()) - y).square().mean()
                loss.backward()
                return loss.realize(*[parameter.grad for parameter in parameters] if way != "lazy" else [])

            @TinyJit
            def take(*grads):
                for parameter, grad in zip(parameters, grads):
                    parameter.grad = grad
                optimizer.step()

            step = {"optimizer": TinyJit(optimizer.step), "arguments": lambda: take(*[p.grad.realize() for p in parameters])}
            generator, kept = np.random.default_rng(2), []
            part = slice(group.rank * PART, (group.rank + 1) * PART) if group is self.group else slice(None)
            with Settings(TRAINING=1):
                for _ in range(6):  # the third call is the first that runs without Python
                    x, y = (generator.standard_normal((PART * self.group.world_size, size)).astype("f4") for size in (5, 3))
                    backward(Tensor(x[part]).realize(), Tensor(y[part]).realize())
                    if way == "used":
                        kept.append(parameters[0].grad.reshape(-1) + 1)  # not computed yet
                    parallel.average()
                    step.get(way, optimizer.step)()
            found.append(weights(model))
            parallel.close()
        return found

    def test_jit(self):
        """The mean is written where TinyJit writes."""
        for way in ("plain", "optimizer", "arguments"):
            with self.subTest(way):
                here, alone = self.jitted(way)
                self.assertLess(np.abs(here - alone).max(), 1e-5)

    def test_jit_writes_elsewhere(self):
        """An old mean is never averaged as if it were this step's gradient."""
        for way in ("lazy", "used"):
            with self.subTest(way), support.raises(self, ddp.InvalidStateError, "first.weight", "TinyJit", "realize"):
                self.jitted(way)

    def test_other_tensors_stay(self):
        """The gradient of a factor is the other factor itself."""
        weight, factor = Tensor(np.ones(3, "f4")).realize(), Tensor(np.full(3, self.group.rank, "f4")).realize()
        parallel = DataParallel([weight], self.group)
        with Settings(TRAINING=1):
            (weight * factor).sum().backward()
        parallel.average()
        np.testing.assert_array_equal(weight.grad.numpy(), np.full(3, (self.group.world_size - 1) / 2))
        np.testing.assert_array_equal(factor.numpy(), np.full(3, self.group.rank))
        parallel.close()

    def test_accumulated(self):
        """Without zero_grad, what the next passes compute is added to the mean."""
        for realized in (False, True):
            weight = Tensor(np.ones(3, "f4")).realize()
            parallel = DataParallel([weight], self.group)
            for step in range(3):
                with Settings(TRAINING=1):
                    (weight * (self.group.rank + 1.0)).sum().backward()
                if realized:
                    weight.grad.realize()
                parallel.average()
                np.testing.assert_array_equal(weight.grad.numpy(), np.full(3, (step + 1) * (self.group.world_size + 1) / 2))
            parallel.close()

    def test_several_devices(self):
        """Tensors in parts, and copied, on two devices of this rank."""
        devices = ("CPU", "CPU:1")
        for axis in (0, None):
            weight = Tensor(np.full((4, 2), self.group.rank, "f4")).shard(devices, axis=axis).realize()
            parallel = DataParallel([weight], self.group)
            np.testing.assert_array_equal(weight.numpy(), np.zeros((4, 2)))
            for realized in (False, True):
                weight.grad = None
                with Settings(TRAINING=1):
                    (weight * (self.group.rank + 1.0)).sum().backward()
                if realized:
                    weight.grad.realize()
                parallel.average()
                self.assertEqual((weight.device, weight.uop.axis, weight.grad.device), (devices, axis, devices))
                np.testing.assert_array_equal(weight.grad.numpy(), np.full((4, 2), (self.group.world_size + 1) / 2))
            parallel.close()

    def test_changed_models(self):
        """A tensor that is no longer the registered one is an error, before any rank waits."""
        def replace(model):
            model.first.weight = Tensor(model.first.weight.numpy())

        def untie(model):
            model.again = nn.Linear(5, 8)

        def add(model):
            model.more = Tensor([1.0])

        def remove(model):
            del model.norm

        changes = [("first.weight", "is another tensor", replace), ("again.weight", "is another tensor", untie),
                   ("more", "was not in the model", add), ("norm.", "no longer in the model", remove),
                   ("last.bias", "half[3]", lambda model: model.last.bias.replace(model.last.bias.half())),
                   ("norm.running_mean", "double[8]", lambda model: model.norm.running_mean.replace(model.norm.running_mean.double())),
                   ("last.weight", "not trained", lambda model: setattr(model.last.weight, "is_param", False))]
        for name, what, change in changes:
            with self.subTest(name):
                model = Network(1)
                parallel = DataParallel(model, self.group)
                change(model)
                for tensor in nn.state.get_parameters(model):
                    tensor.grad = Tensor.zeros(*tensor.shape, dtype=tensor.dtype)
                with support.raises(self, ddp.InvalidStateError, name, what, "new DataParallel"):
                    parallel.average()
                parallel.close()

    def test_other_gradients(self):
        weight = Tensor(np.ones(3, "f4")).realize()
        parallel = DataParallel([weight], self.group)
        for grad in (Tensor(np.ones(3, "f8")), Tensor(np.ones(4, "f4"))):
            weight.grad = grad
            with support.raises(self, ValueError, "0: its gradient is", "the tensor float[3]"):
                parallel.average()
        parallel.close()

    def test_errors(self):
        parallel = DataParallel(Network(1), self.group)
        with support.raises(self, ddp.MissingGradientError, "first.weight", "average()"):
            parallel.average()
        with support.raises(self, ValueError, "model"):
            DataParallel([], self.group)
        with support.raises(self, ddp.InvalidStateError, "verify_interval", "first values"):
            DataParallel(Network(1), self.group, verify_interval=1)
        with support.raises(self, ddp.InvalidStateError, "average_parameters", "first values"):
            parallel.context.average_parameters()
        with support.raises(self, ddp.InvalidStateError, "shard", "first values"):
            DataParallel(Network(1), self.group, shard=True)
        self.group.barrier()


if support.RANK < 0:
    for count in (2, 3) if sys.argv[1] == "--played" else (2,):
        print(support.run_ranks(count, sys.executable, "-B", *sys.argv))
    if sys.argv[1] == "--played":
        sys.exit()
    assert support.run_ranks(2, sys.executable, "-B", sys.argv[1]).count("y = 3.000 -2.000 x") == 2
    sys.exit()
unittest.main(argv=sys.argv[:1], verbosity=2 if support.RANK <= 0 else 0)
