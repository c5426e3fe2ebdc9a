"""mixed_precision of ddp.torch.DistributedDataParallel, beside PyTorch's class with the same configuration, and beside f64.

    torch_precision_test.py     on 2 ranks. DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
"""
import contextlib
import copy
import dataclasses
import pickle
import unittest.mock
import warnings

import support
import torch_case

torch_case.need(2, 10)

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.func import functional_call  # noqa: E402
from torch.nn.parallel.distributed import _MixedPrecision  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ddp  # noqa: E402
from ddp.torch import DistributedDataParallel  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Network(nn.Module):
    """With a tied weight that another module than its own uses, a frozen one, and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.middle, self.last = nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 9), nn.Linear(9, 9)
        self.last.weight = self.middle.weight
        self.frozen = nn.Parameter(torch.randn(9), requires_grad=False)
        self.register_buffer("scale", torch.rand(9))
        self.register_buffer("number", torch.tensor(1000))
        self.seen = []

    def forward(self, x):
        x = self.rest(torch.tanh(self.norm(self.first(x)))) * self.scale.to(x.dtype) + self.frozen
        self.seen = [x.dtype, self.scale.dtype, self.number.dtype]
        return nn.functional.linear(x, self.middle.weight)

    def rest(self, x):
        return torch.tanh(self.last(torch.tanh(self.middle(x))))


class Untied(Network):
    """PyTorch's class takes it: two parts of a tied weight would be ready twice there, and it casts numbers, too."""

    def __init__(self):
        super().__init__()
        self.last, self.number = nn.Linear(9, 9), torch.tensor(0)


class Checkpointed(Network):
    def rest(self, x):
        middle = checkpoint(lambda x: torch.tanh(self.middle(x)), x, use_reentrant=False)
        return torch.tanh(checkpoint(self.last, middle, use_reentrant=True))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.cells = nn.GRU(6, 5, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.cells(x[None])[0]


class NoStream:
    """PyTorch's class asks for this of a GPU's streams and events, where there is none."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_stream(self, _):
        pass

    def record(self):
        pass

    def wait(self, stream):
        pass


@contextlib.contextmanager
def without_streams():
    with unittest.mock.patch.object(torch, "Stream", NoStream), unittest.mock.patch.object(torch, "Event", NoStream), \
            unittest.mock.patch.object(torch.accelerator, "current_stream", lambda *_: NoStream()):
        yield


class Precisions(torch_case.BesidePyTorch):
    def inputs_of(self, rank, number=0):
        torch.manual_seed(100 * rank + number)
        return torch.randn(3, 6)

    def mean_of(self, module, param_dtype, numbers=(0,)):
        """The mean of gradients that PyTorch computes with parameters of this type, added up in f64."""
        sums = {}
        for rank in range(self.world):
            for number in numbers:
                alone = copy.deepcopy(module)
                cast = {name: p.to(param_dtype) if param_dtype else p for name, p in alone.named_parameters()}
                x = self.inputs_of(rank, number)
                functional_call(alone, cast, (x.to(param_dtype) if param_dtype else x,)).float().square().sum().backward()
                for name, p in alone.named_parameters():
                    if p.grad is not None:
                        sums[name] = sums.get(name, 0) + p.grad.double()
        return {name: total / self.world for name, total in sums.items()}

    def apart(self, module, expected):
        """The largest difference of a gradient, in units of its largest element."""
        return max((p.grad.double() - expected[name]).abs().max().item() / expected[name].abs().max().item()
                   for name, p in module.named_parameters() if p.requires_grad)

    def test_as_pytorchs(self):
        """From the second step on: in the first, PyTorch's gives numbers that nobody has computed, where types differ. It adds in
        reduce_dtype, and so does libddp, but for sums that are f32 until they are rounded once."""
        for config in (_MixedPrecision(BF16), _MixedPrecision(BF16, F32), _MixedPrecision(BF16, BF16, BF16),
                       _MixedPrecision(F16, F32, F16)):
            with self.subTest(config):
                theirs, ours = Untied(), Untied()
                with without_streams():
                    parallel = nn.parallel.DistributedDataParallel(theirs, mixed_precision=config)
                    model = DistributedDataParallel(ours, mixed_precision=config)
                    for number in range(3):
                        for each in (parallel, model):
                            each.zero_grad()
                            output = each(self.inputs_of(self.rank, number))
                            output.float().square().sum().backward()
                        self.assertEqual(theirs.seen[:2], ours.seen[:2])
                        self.assertIs(ours.seen[2], torch.int64)
                        expected = self.mean_of(ours, config.param_dtype, (number,))
                        error, of_theirs = self.apart(ours, expected), self.apart(theirs, expected)
                        self.assertLess(error, 2 * torch.finfo(config.reduce_dtype or config.param_dtype).eps)
                        if number == 0:
                            continue
                        self.assertLessEqual(error, of_theirs + 1e-7)
                        for (name, one), other in zip(theirs.named_parameters(), ours.parameters()):
                            self.assertIs(other.dtype, F32)
                            if other.requires_grad:
                                self.assertIs(other.grad.dtype, F32)
                                self.assertTrue(torch.equal(one.grad, other.grad), name)

    def test_each_kind_of_step(self):
        config = _MixedPrecision(BF16, F32)
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True},
                        {"bucket_cap_mb": 0.0001}):
            for make in (Network, Checkpointed, Recurrent):
                if make is Checkpointed and "find_unused_parameters" in options:
                    continue  # that does not go with use_reentrant=True
                with self.subTest(options, make=make.__name__):
                    module = make()
                    if make is Checkpointed:
                        options = {**options, "static_graph": True}
                    model = DistributedDataParallel(module, mixed_precision=config, **options)
                    for number in range(3):
                        model.zero_grad()
                        model(self.inputs_of(self.rank, number)).float().square().sum().backward()
                        # functional_call knows no checkpoints; and their parts of a tied gradient are added in f32
                        alone, bound = (Network(), torch.finfo(BF16).eps) if make is Checkpointed else (make(), 1e-6)
                        self.assertLess(self.apart(module, self.mean_of(alone, BF16, (number,))), bound)

    def test_accumulation_is_in_f32(self):
        module, config = Network(), _MixedPrecision(BF16, F32)
        model = DistributedDataParallel(module, mixed_precision=config)
        for number in range(8):
            with model.no_sync() if number < 7 else contextlib.nullcontext():
                model(self.inputs_of(self.rank, number)).float().square().sum().backward()
        self.assertLess(self.apart(module, self.mean_of(Network(), BF16, range(8))), 1e-6)

    def test_inputs_and_outputs(self):
        class Takes(nn.Linear):
            def forward(self, pair, named):
                seen.append([pair[0].dtype, pair[1].dtype, named["x"].dtype, self.weight.dtype])
                return super().forward(pair[0] + named["x"]), pair[1]

        seen, module = [], Takes(6, 2)
        model = DistributedDataParallel(module, mixed_precision=_MixedPrecision(BF16))
        output, number = model((torch.ones(1, 6), torch.tensor(1)), named={"x": torch.ones(1, 6)})
        output.sum().backward()
        self.assertEqual((seen, output.dtype, number.dtype), ([[BF16, torch.int64, BF16, BF16]], BF16, torch.int64))
        with torch.no_grad():
            model((torch.ones(1, 6), torch.tensor(1)), named={"x": torch.ones(1, 6)})
        self.assertIs(module.weight.dtype, F32)
        for key, value in model.state_dict().items():
            self.assertIs(value.dtype, F32, key)
        other = DistributedDataParallel(Takes(6, 2), mixed_precision=dataclasses.make_dataclass("Config", [
            ("param_dtype", object, BF16), ("reduce_dtype", object, None), ("buffer_dtype", object, None),
            ("cast_forward_inputs", bool, False)])())
        other((torch.ones(1, 6, dtype=BF16), torch.ones(1)), named={"x": torch.ones(1, 6, dtype=BF16)})
        self.assertEqual(seen[-1], [BF16, F32, BF16, BF16])

    def test_a_forward_pass_that_fails(self):
        module = Network()
        model = DistributedDataParallel(module, mixed_precision=_MixedPrecision(BF16))
        with self.assertRaises(RuntimeError):
            model(torch.ones(3, 5))
        self.assertIs(module.first.weight.dtype, F32)
        model(self.inputs_of(self.rank)).float().square().sum().backward()
        self.assertLess(self.apart(module, self.mean_of(Network(), BF16)), 0.02)

    def test_ignored_parameters_and_copies(self):
        module = Network()
        module._ddp_params_and_buffers_to_ignore = ["first.weight", "first.bias", "scale"]
        model = DistributedDataParallel(module, mixed_precision=_MixedPrecision(None, BF16, BF16))
        self.assertIs(module.scale.dtype, F32)
        model = DistributedDataParallel(Network(), mixed_precision=_MixedPrecision(BF16, F32))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other.zero_grad()
            other(self.inputs_of(self.rank)).float().square().sum().backward()
            self.assertLess(self.apart(other.module, self.mean_of(Network(), BF16)), 1e-6)

    def test_an_optimizer_trains_f32_weights(self):
        module = Network()
        model = DistributedDataParallel(module, mixed_precision=_MixedPrecision(BF16, F32))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # steps that bfloat16 would round away
        before = module.middle.weight.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            model(self.inputs_of(self.rank)).float().mean().backward()
            optimizer.step()
        moved = (module.middle.weight - before).abs()
        self.assertTrue(0 < moved.max() < 1e-3)

    def test_what_cannot_be(self):
        model = DistributedDataParallel(Network(), mixed_precision=_MixedPrecision(BF16))
        with support.raises(self, ddp.InvalidStateError, "register_comm_hook", "mixed_precision"):
            model.register_comm_hook(None, lambda _, bucket: bucket.buffer())
        for config, kind, words in (("yes", TypeError, ("mixed_precision", "str", "param_dtype")),
                                    (_MixedPrecision(torch.int32), TypeError, ("param_dtype", "torch.int32")),
                                    (_MixedPrecision(reduce_dtype=torch.float64), ddp.UnsupportedError, ("reduce_dtype", "torch.float32"))):
            with support.raises(self, kind, *words):
                DistributedDataParallel(Network(), mixed_precision=config)
        with support.raises(self, ddp.UnsupportedError, "mixed_precision", "compiled", "torch.autocast"):
            DistributedDataParallel(torch.compile(Network(), backend="eager"), mixed_precision=_MixedPrecision(BF16))
        with support.raises(self, ddp.UnsupportedError, "reduce_dtype", "sparse"):
            DistributedDataParallel(nn.Embedding(5, 3, sparse=True), mixed_precision=_MixedPrecision(reduce_dtype=BF16))


warnings.simplefilter("ignore")
support.main((2,))
