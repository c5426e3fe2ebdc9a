#!/usr/bin/env python3
"""ddp.torch.DistributedDataParallel with modules on a GPU, beside one process on the CPU that has the whole batch, and beside PyTorch's:

    ddprun -n 2 python3 torch_module.py            DDP_TEST_DEVICE=cuda:0 is the device, which all ranks may share
                                                   (cpu: for DDP_TESTS=BesidePyTorch);
                                                   DDP_TEST_BACKEND=nccl a backend of libddp

The cases are also those of tests/bindings/python/torch_played_test.py, for a device that threads play. On a GPU they are beside PyTorch's
DistributedDataParallel, too: over NCCL, or over Gloo where several ranks have one GPU and NCCL does not allow that. Prints
"skipped: REASON" where there is no PyTorch with a GPU.
"""
import collections
import contextlib
import os
import sys
import tempfile
import unittest

from torch_or_skip import skip, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = torch.device(os.environ.get("DDP_TEST_DEVICE", "cuda:0"))
if DEVICE.type == "cuda" and not torch.cuda.is_available():
    skip("PyTorch sees no GPU")
import ddp  # noqa: E402  (only where it is needed)
from ddp import _torch_groups  # noqa: E402
from ddp._torch_devices import given  # noqa: E402
from ddp.torch import DistributedDataParallel, process_group  # noqa: E402

if "DDP_TEST_BACKEND" in os.environ:
    _torch_groups._default_group = ddp.Group(backend=os.environ["DDP_TEST_BACKEND"])
SECOND = torch.device(DEVICE.type, 1) if DEVICE.type != "cuda" or torch.cuda.device_count() > 1 else None
torch.set_num_threads(1)
torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False  # for numbers that can be compared
STEPS, PART, BOUND = 4, 6, 1e-5  # PART: samples of a batch on each rank. BOUND: rounding


class Network(nn.Module):
    """With a weight that is used twice, and one whose gradient lies in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.twice, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.turned = nn.Parameter(torch.randn(3, 4) / 4)

    def forward(self, x):
        return torch.tanh(self.last(torch.tanh(self.twice(torch.tanh(self.twice(self.first(x))))))) @ self.turned


class Picture(nn.Module):
    """With tensors whose elements lie in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.conv = nn.Conv2d(5, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(4, 6).t() / 4)
        self.register_buffer("scale", torch.rand(4, 2).t() + 1)
        self.register_buffer("mask", torch.tensor([[True, False, True], [True, True, True]]).t())

    def forward(self, x):
        picture = self.conv((x[:, :, None, None] * torch.ones(3, 2, device=x.device)).contiguous(memory_format=torch.channels_last))
        return (picture.mean(1) * self.mask).flatten(1) @ self.turned * self.scale[0]


class Branches(nn.Module):
    """`choose` says which layer a step uses on this rank; "never" is used by none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleDict({name: nn.Linear(5, 4) for name in ("left", "right", "never")})
        self.choose = ["left"]

    def forward(self, x):
        return sum(self.layers[name](x) for name in self.choose)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(5, 4) for _ in range(2))

    def split(self):
        for layer, device in zip(self.layers, (DEVICE, SECOND)):
            layer.to(device)
        return self

    def forward(self, x, which=(0, 1)):
        return [self.layers[one](x.to(self.layers[one].weight.device)) for one in which]


class Checkpointed(Network):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Nested(Network):
    """With a backward pass inside the backward pass, in which most gradients come."""

    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=True)

    def rest(self, x):
        return torch.tanh(self.last(torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(x))))))) @ self.turned


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        self.register_buffer("mark", torch.zeros(2, dtype=torch.bool))

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Scaled(nn.Module):
    """With a buffer that autograd needs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.linear = nn.Linear(5, 4)
        self.register_buffer("scale", torch.rand(4) + 1)

    def forward(self, x):
        return self.linear(x) * self.scale


class TwoDevices(nn.Module):
    """Its second half is on another device, where it has one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 4)

    def split(self):
        self.first.to(DEVICE)
        self.last.to(SECOND)
        return self

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)).to(self.last.weight.device))


def loss_of(output, y):
    return (output - y).square().mean()


class Side:
    """Another stream."""

    def __init__(self, device=DEVICE):
        self.device, self.of = device, torch.cuda if DEVICE.type == "cuda" else torch.accelerator
        self.stream = torch.cuda.Stream(device) if DEVICE.type == "cuda" else torch.Stream(device=device)

    def join(self):
        """The current stream waits for it."""
        self.of.current_stream(self.device).wait_stream(self.stream)


@contextlib.contextmanager
def side_stream(device=DEVICE):
    """With another stream as the current one, which begins after what is on this one."""
    side = Side(device)
    side.stream.wait_stream(side.of.current_stream(device))
    with torch.cuda.stream(side.stream) if DEVICE.type == "cuda" else side.stream:
        yield side


def late():
    """On a GPU, delays the current stream, so that what follows is not there yet; other devices are late by themselves."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(5_000_000)


def on_cpu(tensors):
    return [tensor.detach().cpu() for tensor in tensors]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = process_group()
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    @contextlib.contextmanager
    def raises(self, kind, *words):
        with self.assertRaises(kind) as caught:
            yield
        for word in words:
            self.assertIn(word, str(caught.exception))

    @property
    def mine(self):
        return slice(self.rank * PART, (self.rank + 1) * PART)

    def batches(self, steps=STEPS):
        made = torch.Generator().manual_seed(4)
        for _ in range(steps):
            yield [torch.randn(PART * self.world, size, generator=made) for size in (5, 4)]

    def train(self, module, parts, device=None):
        """`parts` of each batch."""
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for x, y in self.batches():
            optimizer.zero_grad()
            x, y = x[parts], y[parts]
            if device is not None:
                x, y = x.to(device), y.to(device)
                late()
            output = module(x)
            loss = loss_of(output, y.to(output.device))
            loss.backward()
            optimizer.step()

    def same(self, theirs, ours, bound=BOUND):
        for number, (one, other) in enumerate(zip(on_cpu(theirs), on_cpu(ours))):
            self.assertEqual(one.shape, other.shape)
            apart = (one.double() - other.double()).abs().max().item()
            self.assertLessEqual(apart, bound, f"tensor {number}: {other} instead of {one}")  # not so for NaN

    def compare(self, make, place=lambda module: module.to(DEVICE), side=False, **options):
        alone, module = make(), make()
        self.train(alone, slice(None))
        if self.rank:
            with torch.no_grad():
                next(iter(module.parameters())).add_(1)  # rank 0's values count
        with side_stream() if side else contextlib.nullcontext():
            module = place(module)
            model = DistributedDataParallel(module, **options)
            self.train(model, self.mine, DEVICE)
            self.same(alone.parameters(), module.parameters())
            self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])
        return model


class Modules(Case):
    def test_steps(self):
        for views in (False, True):
            for side in (False, True):
                with self.subTest(views=views, side=side):
                    self.compare(Network, side=side, gradient_as_bucket_view=views, bucket_cap_mb=0.0003)

    def test_device_ids(self):
        for options in ({"device_ids": [0]}, {"device_ids": [DEVICE], "output_device": 0}, {"device_ids": [str(DEVICE)]}):
            module = Network().to(DEVICE)
            model = DistributedDataParallel(module, **options)
            self.assertEqual((model.device_ids, model.output_device, model.device), ([0], 0, DEVICE))
            x, y = next(self.batches(1))
            loss = loss_of(model(x[self.mine]), y[self.mine].to(DEVICE))  # which moves x to the device
            loss.backward()
            alone = Network()
            loss_of(alone(x), y).backward()
            self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])
        model = DistributedDataParallel(Network().to(DEVICE))
        self.assertEqual((model.device_ids, model.output_device), (None, None))
        for options, words in (({"device_ids": [0, 1]}, ["device_ids"]), ({"output_device": 1}, ["output_device", "device_ids"]),
                               ({"device_ids": [1]}, ["device_ids", str(DEVICE)]), ({"device_ids": ["cpu"]}, ["device_ids"])):
            with self.raises(ValueError, *words):
                DistributedDataParallel(Network().to(DEVICE), **options)
        with self.raises(ddp.InvalidStateError, "no parameter"):
            DistributedDataParallel(nn.ReLU(), device_ids=[0])
        mixed = Network().to(DEVICE)
        mixed.last.to("cpu")
        with self.raises(ValueError, "module", " and ", "cpu"):
            DistributedDataParallel(mixed)
        if SECOND is not None:
            with self.raises(ValueError, "device_ids", " and "):
                DistributedDataParallel(TwoDevices().split(), device_ids=[0])

    def test_inputs_in_containers_are_moved(self):
        class Takes(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(3))

            def forward(self, pair, named):
                return pair[0] * self.weight + named["list"][0] + pair[1], named["text"]

        model = DistributedDataParallel(Takes().to(DEVICE), device_ids=[0])
        named = collections.defaultdict(list, {"list": [torch.ones(3)], "text": "as it is"})
        output, text = model((torch.ones(3), 2), named=named)
        self.assertEqual((output.device, output.cpu().tolist(), text), (DEVICE, [4, 4, 4], "as it is"))
        output.sum().backward()

    def test_containers_without_anything_to_move_are_the_callers(self):
        class Fills(nn.Linear):
            def forward(self, x, found, pair):
                found["x"].append(x)
                pair[0].append(x)
                return super().forward(x)

        model = DistributedDataParallel(Fills(5, 4).to(DEVICE), device_ids=[0])
        found, pair = {"x": [], "same": (torch.ones(1, device=DEVICE), None)}, ([], [torch.ones(1, device=DEVICE)])
        model(torch.ones(2, 5), found, pair=pair).sum().backward()
        self.assertEqual((len(found["x"]), len(pair[0])), (1, 1))

    def test_pinned_batches(self):
        """From a loader's pinned memory, which copies on a side stream still read when the loader goes on."""
        for views in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            self.train(alone, slice(None))
            model = DistributedDataParallel(module, gradient_as_bucket_view=views)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            batches = [tuple(part[self.mine] for part in batch) for batch in self.batches()]
            copies = Side()
            for batch in torch.utils.data.DataLoader(batches, batch_size=None, pin_memory=True):
                self.assertTrue(all(part.is_pinned() for part in batch))
                with torch.cuda.stream(copies.stream) if DEVICE.type == "cuda" else copies.stream:
                    self.hold()
                    x, y = (part.to(DEVICE, non_blocking=True) for part in batch)
                del batch
                copies.join()
                for part in (x, y):
                    part.record_stream(copies.of.current_stream(DEVICE))
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                del x, y
                optimizer.step()
            self.same(alone.parameters(), module.parameters())

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_several_devices(self):
        for views in (False, True):
            self.compare(TwoDevices, TwoDevices.split, gradient_as_bucket_view=views)
        alone, module = TwoDevices(), TwoDevices().split()
        model = DistributedDataParallel(module)
        with side_stream():  # of the first device: the constructor was in the default streams
            self.train(model, self.mine, DEVICE)
            self.train(alone, slice(None))
            self.same(alone.parameters(), module.parameters())

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_gradients_move_in_order_on_all_devices(self):
        """The thread that autograd has for a device begins steps, and other devices have other current streams there. Gradients in buckets
        are still to be zeroed on one when their buckets move."""
        alone, module = TwoDevices(), TwoDevices().split()
        module.first = module._modules.pop("first")  # comes last among the parameters, and its gradients do, too
        with side_stream(SECOND), side_stream():
            model = DistributedDataParallel(module, gradient_as_bucket_view=True)
            before = model.context.layout_generation
            for x, y in self.batches():
                loss_of(alone(x), y).backward()
                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(SECOND)).backward()
                for layer in ("first", "last"):
                    self.same([p.grad for p in getattr(alone, layer).parameters()], [p.grad for p in getattr(module, layer).parameters()])
                self.hold()
                for each in (alone, module):
                    each.zero_grad(set_to_none=False)
        self.assertGreater(model.context.layout_generation, before)

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_another_device_announces_in_order(self):
        """A gradient of no_sync is on its way on one device when the thread of the other one marks it as unused by the last forward pass."""
        for views in (False, True):
            alone, module = Pair(), Pair().split()
            with side_stream(SECOND), side_stream():
                model = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=views)
                for x, y in self.batches():
                    there, y_there = x[self.mine].to(DEVICE), y[self.mine].to(SECOND)
                    for each in (alone, module):
                        each.zero_grad()
                    for used in (0, 1):
                        loss_of(alone(x)[used], y).backward()
                    with model.no_sync():
                        output, = model(there, [0])
                        self.hold()
                        loss_of(output, y_there.to(DEVICE)).backward()
                    output, = model(x[self.mine].to(SECOND), [1])
                    loss_of(output, y_there).backward()
                    self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_a_device_that_is_not_the_current_one(self):
        for side in (False, True):
            self.compare(Network, lambda module: module.to(SECOND), side, device_ids=[1])

    def test_order_in_memory(self):
        for views in (False, True):
            model = self.compare(Picture, gradient_as_bucket_view=views)
            self.assertTrue(model.module.conv.weight.grad.is_contiguous(memory_format=torch.channels_last))

    def test_accumulation(self):
        for views in (False, True):
            for to_none in (True, False):
                with self.subTest(views=views, to_none=to_none):
                    alone, module = Network(), Network().to(DEVICE)
                    model = DistributedDataParallel(module, gradient_as_bucket_view=views, bucket_cap_mb=0.0003)
                    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, module)]
                    for _ in range(2):
                        for optimizer in optimizers:
                            optimizer.zero_grad(set_to_none=to_none)
                        for number, (x, y) in enumerate(self.batches(3)):
                            loss_of(alone(x), y).backward()
                            with model.no_sync() if number < 2 else contextlib.nullcontext():
                                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                        for optimizer in optimizers:
                            optimizer.step()
                    self.same(alone.parameters(), module.parameters())

    def test_static_graph_and_unused(self):
        for options in ({"static_graph": True}, {"find_unused_parameters": True}):
            for views in (False, True):
                with self.subTest(options, views=views):
                    alone, module = Branches(), Branches().to(DEVICE)
                    module.choose = ["left"] if self.rank % 2 else ["left", "right"]
                    model = DistributedDataParallel(module, gradient_as_bucket_view=views, **options)
                    for x, y in self.batches():
                        for each in (alone, module):
                            each.zero_grad()
                        for rank in range(self.world):
                            alone.choose = ["left"] if rank % 2 else ["left", "right"]
                            part = slice(rank * PART, (rank + 1) * PART)
                            (loss_of(alone(x[part]), y[part]) / self.world).backward()
                        loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                        for name in ("left", "right"):
                            self.same([alone.layers[name].weight.grad], [module.layers[name].weight.grad])
                        self.assertIsNone(module.layers["never"].weight.grad)

    def test_a_gradient_moves_with_its_bucket(self):
        """The gradient of a layer that is frozen, which gets a bucket of its own. Else its old memory would go in no order of streams."""
        module = Network().to(DEVICE)
        model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        for number, (x, y) in enumerate(self.batches(5)):
            if number == 3:
                before = on_cpu([p.grad for p in module.first.parameters()])
                module.first.requires_grad_(False)
            for name, tensor in module.named_parameters():
                if number < 3 or "first" not in name:
                    tensor.grad = None
            loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
        self.same(before, [p.grad for p in module.first.parameters()], 0)
        for name, tensor in module.named_parameters():
            index = model._steps.names.index(name)
            self.assertEqual(tensor.grad.data_ptr(), model.context.grad_view(index).address, name)

    def hold(self):
        """Delays the current stream for a while."""
        late()

    def test_unused_on_another_stream_than_the_constructors(self):
        """Ranks use one of two outputs each. A backward pass that has ended tells which gradients do not come."""
        for views in (False, True):
            alone, module = Pair(), Pair().to(DEVICE)
            model = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=views)
            mark = model._steps._mark_unused

            def hold_and_mark(indices, mark=mark):
                self.hold()
                mark(indices)

            model._steps._mark_unused = hold_and_mark
            with side_stream():
                for x, y in self.batches():
                    for each in (alone, module):
                        each.zero_grad()
                    for rank in range(self.world):
                        part = slice(rank * PART, (rank + 1) * PART)
                        (loss_of(alone(x[part])[rank % 2], y[part]) / self.world).backward()
                    loss_of(model(x[self.mine].to(DEVICE))[self.rank % 2], y[self.mine].to(DEVICE)).backward()
                    used = range(min(self.world, 2))
                    self.same([alone.layers[i].weight.grad for i in used], [module.layers[i].weight.grad for i in used])

    def test_checkpoints(self):
        for make in (Checkpointed, Nested):
            for views in (False, True):
                self.compare(make, gradient_as_bucket_view=views, static_graph=make is Nested)

    def test_two_modules(self):
        both = [nn.Linear(5, 8), nn.Linear(8, 4)]
        alone = [nn.Linear(5, 8), nn.Linear(8, 4)]
        for one, other in zip(both, alone):
            other.load_state_dict(one.state_dict())
            for tensor in other.parameters():
                self.group.broadcast(tensor.data, 0)
            one.to(DEVICE)
        models = [DistributedDataParallel(each, gradient_as_bucket_view=True) for each in both]
        for x, _ in self.batches():
            for each in (*alone, *both):
                each.zero_grad()
            alone[1](torch.tanh(alone[0](x))).square().mean().backward()
            models[1](torch.tanh(models[0](x[self.mine].to(DEVICE)))).square().mean().backward()
            for one, other in zip(both, alone):
                self.same([p.grad for p in other.parameters()], [p.grad for p in one.parameters()])

    # BUFFERS

    def test_buffers(self):
        """Rank 0's come to all at the beginning of each forward pass."""
        for side in (False, True):
            with side_stream() if side else contextlib.nullcontext():
                self.send_buffers()

    def send_buffers(self):
        module = Normalised().to(DEVICE)
        model = DistributedDataParallel(module)
        for step, (x, _) in enumerate(self.batches()):
            late()
            module.mark.copy_(torch.tensor([self.rank == 0, step % 2 == self.rank]))
            model(x[self.mine].to(DEVICE) + self.rank).square().sum().backward()
            self.same_as_first([module.mark, module.norm.num_batches_tracked])
        with torch.no_grad():
            model(next(self.batches(1))[0].to(DEVICE))  # the same on all ranks
        self.same_as_first([tensor for tensor in module.buffers() if tensor.is_floating_point()])

    def test_two_forward_passes_before_a_backward_pass(self):
        """Sending buffers does not count as a change of what the first of them has saved."""
        alone, module = Scaled(), Scaled().to(DEVICE)
        model = DistributedDataParallel(module)
        (x, y), (other, _) = self.batches(2)
        (loss_of(alone(x), y) + loss_of(alone(other), y)).backward()
        first, second = (model(each[self.mine].to(DEVICE)) for each in (x, other))
        y = y[self.mine].to(DEVICE)
        (loss_of(first, y) + loss_of(second, y)).backward()
        self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])

    def same_as_first(self, tensors):
        """The same as on rank 0, and no NaN."""
        mine = [tensor.detach().cpu().double() for tensor in tensors]
        first = [tensor.clone() for tensor in mine]
        for tensor in first:
            self.group.broadcast(tensor, 0)
            self.assertFalse(tensor.isnan().any())
        self.same(first, mine)

    # OPTIMIZERS

    def step_in_hooks(self, module):
        """PyTorch's recipe: an optimizer for each parameter."""
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in module.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)

    @unittest.skipUnless(hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), "this PyTorch has no such hooks")
    def test_optimizers_in_hooks(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
            for side in (False, True):
                with self.subTest(options, side=side), side_stream() if side else contextlib.nullcontext():
                    alone, module = Network(), Network().to(DEVICE)
                    model = DistributedDataParallel(module, bucket_cap_mb=0.0003, **options)
                    self.step_in_hooks(module)
                    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
                    for x, y in self.batches():
                        optimizer.zero_grad()
                        loss_of(alone(x), y).backward()
                        optimizer.step()
                        late()
                        loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                    self.same(alone.parameters(), module.parameters())
                    self.assertTrue(all(p.grad is None for p in module.parameters()))

    # PRECISION

    @unittest.skipUnless(hasattr(nn.parallel.distributed, "_MixedPrecision"), "this PyTorch has no mixed_precision")
    def test_mixed_precision(self):
        config = nn.parallel.distributed._MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
        for options in ({}, {"gradient_as_bucket_view": True, "device_ids": [0]}, {"static_graph": True}):
            for reduce_dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 0.01)):
                config.reduce_dtype = reduce_dtype
                module = Network().to(DEVICE)
                model = DistributedDataParallel(module, mixed_precision=config, **options)
                for x, y in self.batches():
                    model.zero_grad()
                    late()
                    loss_of(model(x[self.mine].to(DEVICE)).float(), y[self.mine].to(DEVICE)).backward()
                    expected = None
                    for rank in range(self.world):
                        alone = Network().to(DEVICE)
                        cast = {name: p.to(torch.bfloat16) for name, p in alone.named_parameters()}
                        part = slice(rank * PART, (rank + 1) * PART)
                        output = torch.func.functional_call(alone, cast, (x[part].to(DEVICE, torch.bfloat16),))
                        loss_of(output.float(), y[part].to(DEVICE)).backward()
                        grads = [p.grad.cpu() / self.world for p in alone.parameters()]
                        expected = grads if expected is None else [a + b for a, b in zip(expected, grads)]
                    self.same(expected, [p.grad for p in module.parameters()], bound)
                    self.assertTrue(all(p.grad.dtype is p.dtype is torch.float32 for p in module.parameters()))

    def test_a_weighted_mean(self):
        for views in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            model = DistributedDataParallel(module, weighted_mean=True, gradient_as_bucket_view=views)
            for x, y in self.batches():
                for each in (alone, module):
                    each.zero_grad()
                parts = [slice(rank * PART, rank * PART + 1 + rank) for rank in range(self.world)]
                whole = [torch.cat([each[part] for part in parts]) for each in (x, y)]
                loss_of(alone(whole[0]), whole[1]).backward()
                late()
                model.set_weight(self.rank + 1)
                loss_of(model(x[parts[self.rank]].to(DEVICE)), y[parts[self.rank]].to(DEVICE)).backward()
                self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])

    def test_autocast(self):
        module, alone = Network().to(DEVICE), Network()
        model = DistributedDataParallel(module)
        for x, y in self.batches():
            for each in (alone, module):
                each.zero_grad()
            loss_of(alone(x), y).backward()
            with torch.autocast(DEVICE.type, torch.bfloat16):
                output = model(x[self.mine].to(DEVICE))
            self.assertEqual(output.dtype, torch.bfloat16)
            loss_of(output.float(), y[self.mine].to(DEVICE)).backward()
            self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()], 0.05)

    def test_types(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            module = nn.Linear(5, 4).to(DEVICE, dtype)
            model = DistributedDataParallel(module)
            x = torch.full((2, 5), float(self.rank + 1), dtype=dtype, device=DEVICE)
            model(x).sum().backward()
            self.assertEqual(module.weight.grad.cpu().double().unique().tolist(), [self.world + 1])

    @unittest.skipUnless(hasattr(torch.Tensor, "grad_dtype"), "this PyTorch has gradients of their parameters' types only")
    def test_gradients_of_another_type(self):
        """f32 gradients of bfloat16 weights. Each element is the same on all ranks but for digits that bfloat16 does not have."""
        for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
            with self.subTest(options):
                module = nn.Linear(5, 4).to(DEVICE, torch.bfloat16)
                for tensor in module.parameters():
                    tensor.grad_dtype = torch.float32
                model = DistributedDataParallel(module, **options)
                x = torch.ones(2, 5, dtype=torch.bfloat16, device=DEVICE)
                for _ in range(3):
                    model.zero_grad()
                    with model.no_sync():
                        (model(x) * 256.0).sum().backward()
                    (model(x) * float(self.rank + 1)).sum().backward()
                    self.assertIs(module.weight.grad.dtype, torch.float32)
                    # in bfloat16, 512 + 2 (rank + 1) would be a multiple of 4
                    self.assertEqual(module.weight.grad.cpu().double().unique().tolist(), [512 + self.world + 1])

    def test_a_scaler_sees_infinity_on_all_ranks(self):
        module = nn.Linear(5, 4).to(DEVICE)
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=4.0, growth_interval=1000)
        before = on_cpu(module.parameters())
        for step in range(2):
            optimizer.zero_grad()
            x = torch.ones(2, 5, device=DEVICE)
            if step == 0 and self.rank == self.world - 1:
                x = x * float("inf")
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 0:
                self.same(before, module.parameters(), 0)  # skipped
                self.assertEqual(scaler.get_scale(), 2)
        self.same([before[0] - 0.2], [module.weight])

    # HOOKS

    def hooked(self, hook, state=None, bound=BOUND, register=None):
        for views in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            model = DistributedDataParallel(module, gradient_as_bucket_view=views, bucket_cap_mb=0.0003)
            (register or (lambda model: model.register_comm_hook(state, hook)))(model)
            for x, y in self.batches():
                for each in (alone, module):
                    each.zero_grad()
                loss_of(alone(x), y).backward()
                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()], bound)

    def test_hook_with_the_group(self):
        def hook(group, bucket):
            whole = torch.cat([gradient.flatten() for gradient in bucket.gradients()]).sum()  # on the bucket's stream
            group.allreduce(given(bucket.buffer()), "avg")
            self.assertEqual(whole.device, DEVICE)
            self.assertEqual([p.shape for p in bucket.parameters()], [g.shape for g in bucket.gradients()])
            return bucket.buffer().mul(2).div(2)

        self.hooked(hook, self.group)

    def test_hook_with_a_future(self):
        def hook(group, bucket):
            result = torch.futures.Future()
            half = bucket.buffer().double()
            group.allreduce(given(half), "avg")
            result.set_result([half])
            return result

        self.hooked(hook, self.group)

    def test_hook_with_a_stream_of_its_own(self):
        """Its result lies in memory of that stream, and is the last reference to it."""
        def hook(group, bucket):
            group.allreduce(given(bucket.buffer()), "avg")
            with side_stream() as own:
                result = bucket.buffer().clone()
            own.join()
            return result

        self.hooked(hook, self.group)

    def test_named_hooks(self):
        self.hooked(None, register=lambda model: model.context.use_hook("fp16"), bound=1e-2)
        kind = torch.distributed.BuiltinCommHookType
        self.hooked(None, register=lambda model: model._register_builtin_comm_hook(kind.ALLREDUCE))
        self.hooked(None, register=lambda model: model._register_builtin_comm_hook(kind.FP16_COMPRESS), bound=1e-2)

    # THE REST

    @unittest.skipUnless(hasattr(torch, "compile"), "PyTorch 2 has it")
    def test_compiled(self):
        self.compare(lambda: torch.compile(Network(), backend="aot_eager"))

    def test_a_hook_that_fails(self):
        """The error comes out of the backward pass, and a new model in a new group trains."""
        def fails(_, bucket):
            raise ArithmeticError(f"bucket {bucket.index()}")

        group = ddp.Group(0, 1, timeout=20)
        model = DistributedDataParallel(Network().to(DEVICE), process_group=group)
        model.register_comm_hook(None, fails)
        with self.raises(ArithmeticError, "bucket 0"):
            loss = model(next(self.batches(1))[0].to(DEVICE)).sum()
            loss.backward()
        del model, loss
        self.compare(Network)

    def test_joined(self):
        module = nn.Linear(5, 4).to(DEVICE)
        with torch.no_grad():
            module.weight.fill_(0)
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        with model.join():
            for _ in range(1 + self.rank):
                optimizer.zero_grad()
                model(torch.ones(1, 5, device=DEVICE)).sum().backward()
                optimizer.step()
        steps = sum((self.world - done) / self.world for done in range(self.world))
        self.same([torch.full((4, 5), -steps)], [module.weight])

    def test_converted(self):
        """A module whose tensors are replaced is registered again, on another stream, with what no_sync has accumulated."""
        module = Network().to(DEVICE)
        model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        self.train(model, self.mine, DEVICE)
        module.first = nn.Linear(5, 8).to(DEVICE)
        with torch.no_grad():
            for tensor in module.first.parameters():
                tensor.fill_(0.1)
        alone = Network()
        alone.first = nn.Linear(5, 8)
        for theirs, ours in zip(alone.parameters(), module.parameters()):
            theirs.data.copy_(ours.detach().cpu())
        with side_stream():
            self.train(model, self.mine, DEVICE)
            self.train(alone, slice(None))
            self.same(alone.parameters(), module.parameters())

    def test_moved_to_the_device(self):
        """A module that was wrapped on the CPU."""
        model = DistributedDataParallel(Network())
        self.assertEqual((model.device.type, model.device_type), ("cpu", "cpu"))
        alone = Network()
        alone.load_state_dict(model.module.state_dict())
        model.to(DEVICE)
        self.train(model, self.mine, DEVICE)
        self.train(alone, slice(None))
        self.same(alone.parameters(), model.parameters())
        self.assertEqual((model.device, model.device_type), (DEVICE, DEVICE.type))

    def test_a_model_that_is_gone(self):
        """Its buckets are there until the streams have taken what they need."""
        for views in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            model = DistributedDataParallel(module, gradient_as_bucket_view=views)
            x, y = next(self.batches(1))
            loss_of(alone(x), y).backward()
            late()
            loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
            del model
            other = DistributedDataParallel(Network().to(DEVICE))  # which may get that memory
            self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters()])
            del other

    def test_sparse_gradients_are_refused(self):
        module = nn.Sequential(nn.Embedding(5, 3, sparse=True)).to(DEVICE)
        with self.raises(NotImplementedError, "0.weight", str(DEVICE), "sparse=False"):
            DistributedDataParallel(module)


class BesidePyTorch(unittest.TestCase):
    """Equal bits where there is one rank, and rounding where there are more. PyTorch's class is on the GPU, or on the CPU where DEVICE is
    none."""

    @classmethod
    def setUpClass(cls):
        group = process_group()
        cls.rank, cls.world = group.rank, group.world_size
        cls.theirs = DEVICE if DEVICE.type == "cuda" else torch.device("cpu")
        with tempfile.TemporaryDirectory() as folder:
            name = torch.zeros(200, dtype=torch.uint8)
            name[:len(folder)] = torch.tensor(list(folder.encode()), dtype=torch.uint8)
            group.broadcast(name, 0)
            folder = bytes(name[name != 0].tolist()).decode()
            cls.start(init_method=f"file://{folder}/meeting", rank=cls.rank, world_size=cls.world)
            group.barrier()

    @classmethod
    def start(cls, **options):
        """NCCL has one rank on each GPU, unless it is told otherwise."""
        several = torch.cuda.device_count() < cls.world and not os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE")
        torch.distributed.init_process_group("gloo" if several else "nccl", **options)

    @classmethod
    def tearDownClass(cls):
        torch.distributed.destroy_process_group()

    def train(self, make, parallel, autocast=False, **options):
        """With our class, or with theirs."""
        device = DEVICE if parallel is not nn.parallel.DistributedDataParallel else self.theirs
        module = make().to(device)
        model = parallel(module, device_ids=None if device.type == "cpu" else [device.index], **options)
        hook = self.hook
        if hook is not None:
            model.register_comm_hook(*hook(self.group_of_hooks if device == DEVICE else None))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        made = torch.Generator().manual_seed(4 + self.rank)
        for _ in range(STEPS):
            x, y = (torch.randn(PART, size, generator=made).to(device) for size in (5, 4))
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                output = model(x)
            loss_of(output.float(), y).backward()
            optimizer.step()
        return [tensor.detach().cpu() for tensor in module.state_dict().values()]

    def test_the_same_weights(self):
        synchronised = [lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Normalised())] if torch.distributed.get_backend() == "nccl" else []
        for make in (Network, Picture, Normalised, *synchronised):
            for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"autocast": True}):
                if options.get("autocast") and DEVICE.type != "cuda":
                    continue  # the CPU casts other operations
                ours = self.train(make, DistributedDataParallel, **options)
                theirs = self.train(make, nn.parallel.DistributedDataParallel, **options)
                for one, other in zip(ours, theirs):
                    if self.world == 1:
                        self.assertTrue(torch.equal(one, other), f"{make.__name__}, {options}")
                    else:
                        self.assertLess((one.double() - other.double()).abs().max().item(), 1e-2 if "autocast" in options else BOUND)

    hook = group_of_hooks = None

    def test_their_hooks(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        def powersgd(group):
            return powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5), \
                powerSGD_hook.powerSGD_hook

        hooks = {name: lambda group, name=name: (group, getattr(default_hooks, name))
                 for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")}
        # PowerSGD draws its first matrices in the order of the gradients in a bucket, which need not be that of PyTorch's class.
        for name, self.hook in {**hooks, "powersgd": powersgd}.items():
            for views in (False, True):
                ours = self.train(Network, DistributedDataParallel, gradient_as_bucket_view=views)
                theirs = self.train(Network, nn.parallel.DistributedDataParallel, gradient_as_bucket_view=views)
                for one, other in zip(ours, theirs):
                    self.assertLess((one - other).abs().max().item(), 1e-4 if name == "allreduce_hook" else 1e-2, name)

    @unittest.skipIf(DEVICE.type == "played", "the group of torch.distributed has no such device")
    def test_joined(self):
        from torch.distributed.algorithms.join import Join

        def train(parallel):
            module = Network().to(DEVICE)
            model = parallel(module, device_ids=None if DEVICE.type == "cpu" else [DEVICE.index])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            made = torch.Generator().manual_seed(4 + self.rank)
            with Join([model]):
                for _ in range(2 + self.rank):
                    optimizer.zero_grad()
                    model(torch.randn(PART, 5, generator=made).to(DEVICE)).square().mean().backward()
                    optimizer.step()
            return [tensor.detach().cpu() for tensor in module.parameters()]

        for one, other in zip(train(DistributedDataParallel), train(nn.parallel.DistributedDataParallel)):
            self.assertLess((one - other).abs().max().item(), BOUND)

    @unittest.skipUnless(DEVICE.type == "cuda", "PyTorch tells it for CUDA")
    def test_the_host_does_not_wait(self):
        module = Normalised().to(DEVICE)
        model = DistributedDataParallel(module, device_ids=[DEVICE.index], gradient_as_bucket_view=True)
        x = torch.randn(PART, 5, device=DEVICE)
        for _ in range(3):
            model(x).square().mean().backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                model(x).square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def main(module):
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    group = process_group()
    chosen = os.environ.get("DDP_TESTS", "").split()
    done = unittest.main(module=module, argv=sys.argv[:1] + chosen, verbosity=2 if group.rank == 0 else 0, exit=False)
    if not done.result.wasSuccessful():
        sys.exit(1)
    if group.rank == 0 and DEVICE.type == "cuda":
        print(f"{done.result.testsRun} tests on {torch.cuda.get_device_name(DEVICE)}, {group.world_size} ranks, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main(__name__)
