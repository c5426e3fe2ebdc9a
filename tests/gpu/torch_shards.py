#!/usr/bin/env python3
"""ddp.torch.ShardedOptimizer with modules on a GPU, beside one process on the CPU that has the whole batch, and beside ranks that update all:

    ddprun -n 2 python3 torch_shards.py            its environment is that of torch_module.py

The cases are also those of tests/bindings/python/torch_played_shards_test.py.
"""
import contextlib
import copy
import io
import os
import unittest

from torch_module import (DEVICE, PART, SECOND, Branches, Case, DistributedDataParallel, Network, Picture, Side, TwoDevices, late, loss_of, main,
                          on_cpu, side_stream, torch)
from torch import nn

import ddp
from ddp._torch_devices import given
from ddp.torch import ShardedOptimizer

AdamW, SGD = torch.optim.AdamW, torch.optim.SGD
ADAM = {"lr": 0.01, "eps": 1e-3, "weight_decay": 0.1}  # eps: a gradient that is all rounding moves nothing
MOMENTUM = {"lr": 0.1, "momentum": 0.9}


def by_shape(_, tensor):
    """Owners of all three kinds."""
    return "whole" if tensor.dim() > 1 and len(tensor) == 8 else "replicated" if len(tensor) == 3 else "elements"


class Shards(Case):
    def setUp(self):
        """A group for each test, which a test that fails breaks."""
        self.group = ddp.Group(timeout=60, deterministic=True, backend=os.environ.get("DDP_TEST_BACKEND"))

    def hold(self):
        """Delays the current stream for a while."""
        late()

    def wrap(self, module, **options):
        return DistributedDataParallel(module, process_group=self.group, bucket_cap_mb=0.0003, **options)

    def optimizer(self, model, optimizer_class=AdamW, params=None, **options):
        """Sharded, if the model is."""
        params = model.parameters() if params is None else params
        sharded = isinstance(model, DistributedDataParallel) and model._shard
        return ShardedOptimizer(params, optimizer_class, **options) if sharded else optimizer_class(params, **options)

    def steps(self, model, optimizer, steps=4, micros=1, clip=None, scheduler=None, before_step=lambda: None):
        """A model on the device, sharded or not, or a module on the CPU, which has the whole batches."""
        whole = not isinstance(model, DistributedDataParallel)
        for step in range(steps):
            optimizer.zero_grad()
            batches = list(self.batches(steps * micros))[step * micros:(step + 1) * micros]
            for number, (x, y) in enumerate(batches):
                if not whole:
                    x, y = x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)
                with model.no_sync() if not whole and number + 1 < micros else contextlib.nullcontext():
                    output = model(x)
                    loss_of(output, y.to(output.device)).backward()
            if clip:
                (optimizer.clip_grad_norm_ if isinstance(optimizer, ShardedOptimizer) else
                 lambda norm: nn.utils.clip_grad_norm_(model.parameters(), norm))(clip)
            if not whole:
                before_step()
            optimizer.step()
            if scheduler:
                scheduler.step()

    def beside_one(self, make=Network, optimizer_class=AdamW, shard=True, overlap=False, side=False, wrap=None, place=lambda module: module.to(DEVICE),
                   groups=lambda module: module.parameters(), scheduler=lambda _: None, options=None, bound=2e-5, **steps):
        """The weights are those of one process."""
        options = {AdamW: ADAM, SGD: MOMENTUM}[optimizer_class] if options is None else options
        alone = make()
        optimizer = optimizer_class(groups(alone), **options)
        self.steps(alone, optimizer, scheduler=scheduler(optimizer), **steps)
        with side_stream() if side else contextlib.nullcontext():
            module = place(make())
            model = self.wrap(module, shard=shard, **(wrap or {}))
            optimizer = ShardedOptimizer(groups(module), optimizer_class, overlap_with_ddp=overlap, **options)
            self.steps(model, optimizer, scheduler=scheduler(optimizer), **steps)
            if overlap:
                optimizer.wait_values()
            self.same(alone.parameters(), module.parameters(), bound)
        return model, optimizer

    def beside_all(self, train):
        """train(model): the same bits, whether ranks update shards or all."""
        found = []
        for shard in (False, True):
            module = Network().to(DEVICE)
            train(self.wrap(module, shard=shard))
            found.append(on_cpu(module.parameters()))
        self.same(*found, 0)

    def test_steps(self):
        for make in (Network, Picture):
            for optimizer_class in (AdamW, SGD):
                for number, shard in enumerate((True, True, "whole", "replicated", by_shape)):
                    with self.subTest(make=make.__name__, optimizer=optimizer_class.__name__, number=number):
                        self.beside_one(make, optimizer_class, shard, overlap=number % 2 == 1, side=number % 2 == 1)

    def test_bits_of_ranks_that_update_all(self):
        def train(model):
            self.steps(model, self.optimizer(model, **ADAM))

        self.beside_all(train)

    def test_a_share_of_the_state(self):
        model, optimizer = self.beside_one()
        states = [value for state in optimizer.optim.state.values() for value in state.values() if value.dim()]
        self.assertEqual({value.device for value in states}, {DEVICE})
        mine = torch.tensor([sum(value.numel() for value in states)])
        everything = 2 * sum(tensor.numel() for tensor in model.module.parameters())
        self.assertLessEqual(mine.item(), everything / self.world * 1.01 + 64)
        self.group.allreduce(mine)
        self.assertEqual(mine.item(), everything)

    def test_no_sync(self):
        for wrap in ({}, {"gradient_as_bucket_view": True}):
            for overlap in (False, True):
                alone, module = Network(), Network().to(DEVICE)
                model = self.wrap(module, shard=True, **wrap)
                optimizers = [SGD(alone.parameters(), lr=0.1), ShardedOptimizer(model, SGD, overlap_with_ddp=overlap, lr=0.1)]
                for each, optimizer in zip((alone, model), optimizers):
                    self.steps(each, optimizer, steps=3, micros=3)
                optimizers[1].wait_values()
                self.same(alone.parameters(), module.parameters())

    def test_groups_and_schedulers(self):
        def groups(module):
            return [{"params": [t for t in module.parameters() if t.dim() > 1], "weight_decay": 0.2},
                    {"params": [t for t in module.parameters() if t.dim() < 2], "lr": 0.05}]

        _, optimizer = self.beside_one(groups=groups, scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=12))
        self.assertEqual(optimizer.param_groups[0]["weight_decay"], 0.2)

    def test_groups_that_are_added(self):
        def train(model):
            module = model.module
            first, rest = list(module.first.parameters()), [t for name, t in module.named_parameters() if "first" not in name]
            optimizer = self.optimizer(model, params=first, **ADAM)
            self.steps(model, optimizer, 2)
            optimizer.add_param_group({"params": rest, "lr": 0.02})
            self.steps(model, optimizer, 2)

        self.beside_all(train)

    def test_clipping(self):
        for norm_type in (2.0, 1.0, float("inf")):
            for side in (False, True):
                with side_stream() if side else contextlib.nullcontext():
                    alone, module = Network(), Network().to(DEVICE)
                    model = self.wrap(module, shard=by_shape)
                    optimizer = ShardedOptimizer(model, SGD, lr=0.1)
                    x, y = next(self.batches(1))
                    loss_of(alone(x), y).backward()
                    x, y = x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)
                    self.hold()
                    loss_of(model(x), y).backward()
                    found = optimizer.clip_grad_norm_(0.01, norm_type)
                    wanted = nn.utils.clip_grad_norm_(alone.parameters(), 0.01, norm_type)
                    self.assertEqual(found.device, DEVICE)
                    self.assertLess(abs(found.item() / wanted.item() - 1), 1e-5)
                    optimizer.step()
                    SGD(alone.parameters(), 0.1).step()
                    self.same(alone.parameters(), module.parameters())
        self.beside_one(clip=0.05)

    def test_a_norm_that_is_not_finite(self):
        model = self.wrap(Network().to(DEVICE), shard=True)
        optimizer = ShardedOptimizer(model, SGD, lr=0.1)
        x, y = (each[self.mine].to(DEVICE) for each in next(self.batches(1)))
        loss_of(model(x), y if self.rank + 1 < self.world else y * float("inf")).backward()
        with self.raises(RuntimeError, "non-finite"):
            optimizer.clip_grad_norm_(1, error_if_nonfinite=True)
        self.assertFalse(optimizer.clip_grad_norm_(1).isfinite().item())

    def test_types(self):
        def half(optimizer_class, grad_dtype=None):
            found = []
            for shard in (False, True, by_shape):
                module = Network().to(DEVICE, torch.bfloat16)
                for tensor in module.parameters() if grad_dtype else ():
                    tensor.grad_dtype = grad_dtype
                model = self.wrap(module, shard=shard)
                optimizer = self.optimizer(model, optimizer_class, lr=0.1)
                for x, y in self.batches():
                    optimizer.zero_grad()
                    loss_of(model(x[self.mine].to(DEVICE, torch.bfloat16)), y[self.mine].to(DEVICE, torch.bfloat16)).backward()
                    optimizer.step()
                found.append(on_cpu(module.parameters()))
                if grad_dtype and shard:
                    self.assertEqual({piece.gradient.dtype for piece in optimizer._shards.pieces}, {grad_dtype})
            for other in found[1:]:
                self.same(found[0], other, 0)

        half(SGD)
        half(AdamW)
        if hasattr(torch.Tensor, "grad_dtype"):
            half(SGD, torch.float32)

    def test_options_of_the_module(self):
        for options in ({"static_graph": True}, {"find_unused_parameters": True}, {"weighted_mean": True}):
            with self.subTest(options):
                found = []
                for shard in (False, True):
                    module = Network().to(DEVICE)
                    model = self.wrap(module, shard=shard, **options)
                    optimizer = self.optimizer(model, **ADAM)
                    for step, (x, y) in enumerate(self.batches()):
                        if "weighted_mean" in options:
                            model.set_weight(self.rank + step + 1)
                        optimizer.zero_grad()
                        loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                        optimizer.step()
                    found.append(on_cpu(module.parameters()))
                self.same(*found, 0)

    def test_a_hook(self):
        def hook(group, bucket):
            half = bucket.buffer().to(torch.float16).div(group.world_size)
            group.allreduce(given(half), "sum")
            return bucket.buffer().copy_(half)

        def train(model):
            model.register_comm_hook(self.group, hook)
            self.steps(model, self.optimizer(model, **ADAM))

        self.beside_all(train)

    def test_unused_and_frozen_parameters(self):
        for shard in (True, "whole"):
            found = []
            for sharded in (False, shard):
                module = Branches().to(DEVICE)
                model = self.wrap(module, shard=sharded, find_unused_parameters=True)
                optimizer = self.optimizer(model, **ADAM)
                for step, (x, y) in enumerate(self.batches(6)):
                    module.choose = [["left"], ["left", "right"], ["right"]][step % 3] if self.rank == 0 else ["left"]
                    optimizer.zero_grad()
                    loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                    optimizer.step()
                found.append(on_cpu(module.parameters()))
            self.same(*found, 0)

        def train(model):
            optimizer = self.optimizer(model, **ADAM)
            for frozen in (False, True, False):
                model.module.twice.requires_grad_(not frozen)
                self.steps(model, optimizer, 2)

        self.beside_all(train)

    # STREAMS

    def test_a_step_is_late(self):
        for overlap in (False, True):
            self.beside_one(overlap=overlap, before_step=self.hold)

    def test_a_step_on_a_stream_of_its_own(self):
        """The program orders the streams of the passes and of the step. Values go and come in the order of the latter."""
        for overlap in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            model, side = self.wrap(module, shard=True), Side()
            optimizers = [AdamW(alone.parameters(), **ADAM), ShardedOptimizer(model, AdamW, overlap_with_ddp=overlap, **ADAM)]
            for x, y in self.batches():
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss_of(alone(x), y).backward()
                optimizers[0].step()
                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                side.stream.wait_stream(side.of.current_stream(DEVICE))
                with torch.cuda.stream(side.stream) if DEVICE.type == "cuda" else side.stream:
                    self.hold()
                    optimizers[1].step()
                side.join()
            optimizers[1].wait_values()
            self.same(alone.parameters(), module.parameters())

    def test_values_are_there_when_they_are_read(self):
        for read in ("parameters", "state_dict", "forward"):
            alone, module = Network(), Network().to(DEVICE)
            model = self.wrap(module, shard=True)
            optimizers = [SGD(alone.parameters(), lr=0.1), ShardedOptimizer(model, SGD, overlap_with_ddp=True, lr=0.1)]
            x, y = next(self.batches(1))
            loss_of(alone(x), y).backward()
            optimizers[0].step()
            loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
            self.hold()
            optimizers[1].step()
            if read == "state_dict":
                self.same(alone.state_dict().values(), model.state_dict().values())
                continue
            if read == "forward":
                self.same([alone(x)], [model.module(x.to(DEVICE))])
            else:
                optimizers[1].wait_values()
            self.same(alone.parameters(), module.parameters())

    def test_two_optimizers(self):
        def train(model):
            sharded = bool(model._shard)
            matrices, vectors = ([t for t in model.parameters() if (t.dim() == 2) is two] for two in (True, False))
            optimizers = [self.optimizer(model, SGD, matrices, lr=0.1), self.optimizer(model, AdamW, vectors, **ADAM)]
            for x, y in self.batches():
                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                for optimizer in optimizers:
                    if sharded:
                        self.hold()
                    optimizer.step()
                    optimizer.zero_grad()

        self.beside_all(train)

    def test_two_optimizers_on_streams_of_their_own(self):
        """The last to step sends the values of both."""
        def train(model):
            sides = [Side(), Side()]
            matrices, vectors = ([t for t in model.parameters() if (t.dim() == 2) is two] for two in (True, False))
            optimizers = [self.optimizer(model, SGD, matrices, lr=0.1), self.optimizer(model, AdamW, vectors, **ADAM)]
            for x, y in self.batches():
                model.zero_grad()
                loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                for side, optimizer in zip(sides, optimizers):
                    side.stream.wait_stream(side.of.current_stream(DEVICE))
                    with torch.cuda.stream(side.stream) if DEVICE.type == "cuda" else side.stream:
                        if side is sides[0]:
                            self.hold()
                        optimizer.step()
                for side in sides:
                    side.join()

        self.beside_all(train)

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_several_devices(self):
        for shard in (True, "whole"):
            for overlap in (False, True):
                self.beside_one(TwoDevices, shard=shard, overlap=overlap, place=TwoDevices.split, clip=0.05)
        alone, module = TwoDevices(), TwoDevices().split()
        with side_stream(SECOND), side_stream():
            model = self.wrap(module, shard=True)
            optimizer = ShardedOptimizer(model, AdamW, **ADAM)
        with side_stream(SECOND), side_stream():
            self.steps(model, optimizer)
            self.steps(alone, AdamW(alone.parameters(), **ADAM))
            self.same(alone.parameters(), module.parameters(), 2e-5)

    @unittest.skipIf(SECOND is None, "there is one GPU")
    def test_a_device_that_is_not_the_current_one(self):
        alone, module = Network(), Network().to(SECOND)
        model = self.wrap(module, shard=True, device_ids=[1])
        optimizer = ShardedOptimizer(model, AdamW, **ADAM)
        self.steps(model, optimizer, clip=0.05)
        self.steps(alone, AdamW(alone.parameters(), **ADAM), clip=0.05)
        self.same(alone.parameters(), module.parameters(), 2e-5)

    # STATE

    def from_first(self, state):
        """A checkpoint of rank 0, on all ranks."""
        data = io.BytesIO()
        torch.save(state, data)
        size = torch.tensor([len(data.getbuffer())])
        self.group.broadcast(size)
        sent = torch.frombuffer(bytearray(data.getvalue().ljust(size.item())[:size.item()]), dtype=torch.uint8)
        self.group.broadcast(sent)
        return torch.load(io.BytesIO(bytes(sent.tolist())), weights_only=True)

    def test_state(self):
        """As that of the optimizer that is not sharded, on the CPU; and training goes on from there."""
        module = Network().to(DEVICE)
        model = self.wrap(module)
        optimizer = AdamW(module.parameters(), **ADAM)
        self.steps(model, optimizer, 3)
        plain = {number: {key: value.cpu().clone() for key, value in state.items()} for number, state in optimizer.state_dict()["state"].items()}
        self.steps(model, optimizer, 3)
        expected = on_cpu(module.parameters())
        for shard in (True, "whole", by_shape):
            module = Network().to(DEVICE)
            model = self.wrap(module, shard=shard)
            optimizer = ShardedOptimizer(model, AdamW, overlap_with_ddp=True, **ADAM)
            self.steps(model, optimizer, 3, before_step=self.hold)
            optimizer.consolidate_state_dict(self.world - 1)
            if self.rank == self.world - 1:
                for number, state in optimizer.state_dict()["state"].items():
                    for key, value in state.items():
                        self.assertEqual(value.device.type, "cpu")
                        self.assertTrue(torch.equal(value, plain[number][key]), (number, key))
            optimizer.consolidate_state_dict()
            saved = self.from_first({"model": {name: tensor.cpu() for name, tensor in model.module.state_dict().items()},
                                     "optimizer": optimizer.state_dict()} if self.rank == 0 else None)
            self.steps(model, optimizer, 3)
            optimizer.wait_values()
            self.same(expected, module.parameters(), 0)
            for again in (shard, "whole", False):
                module = Network().to(DEVICE)
                module.load_state_dict(saved["model"])
                model = self.wrap(module, shard=again)
                other = self.optimizer(model, lr=0.5)
                other.load_state_dict(copy.deepcopy(saved["optimizer"]))
                self.assertEqual(other.param_groups[0]["lr"], ADAM["lr"])
                self.steps(model, other, 3)
                self.same(expected, module.parameters(), 0)

    # GRADIENTS

    def test_gradients_are_nowhere_else(self):
        module = Network().to(DEVICE)
        model = self.wrap(module, shard=True)
        optimizer = ShardedOptimizer(model, SGD, lr=0.1)
        x, y = (each[self.mine].to(DEVICE) for each in next(self.batches(1)))
        loss_of(model(x), y).backward()
        for tensor in module.parameters():
            self.assertEqual((tensor.grad.device, tensor.grad.shape), (tensor.device, tensor.shape))
            self.assertTrue(tensor.grad.cpu().isnan().all())
        with self.assertRaises(RuntimeError):
            nn.utils.clip_grad_norm_(module.parameters(), 1)
        optimizer.step()
        self.assertTrue(all(tensor.grad is None for tensor in module.parameters()))

    def test_a_scaler(self):
        """It finds what is infinite on one rank, or in the pieces of one, on all ranks."""
        for owner in (True, "whole"):
            for clip in (None, 0.05):
                found, scales = [], []
                for shard in (False, owner):
                    module = Network().to(DEVICE)
                    model = self.wrap(module, shard=shard)
                    optimizer = self.optimizer(model, **ADAM)
                    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, growth_interval=2)
                    scales.append([])
                    for step, (x, y) in enumerate(self.batches(5)):
                        x, y = x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)
                        optimizer.zero_grad()
                        loss = loss_of(model(x), y)
                        if step == 2 and self.rank == self.world - 1:
                            loss = loss + module.first.bias[7] * float("inf")
                        scaler.scale(loss).backward()
                        if clip:
                            scaler.unscale_(optimizer)
                            (optimizer.clip_grad_norm_ if shard else lambda norm: nn.utils.clip_grad_norm_(module.parameters(), norm))(clip)
                        scaler.step(optimizer)
                        scaler.update()
                        scales[-1].append(scaler.get_scale())
                    found.append(on_cpu(module.parameters()))
                self.assertEqual(scales[0], [1024, 2048, 1024, 1024, 2048])
                self.assertEqual(*scales)
                self.same(*found, 1e-6 if clip else 0)

    def test_a_scaler_with_two_optimizers(self):
        """The gradients of one are infinite in the second step."""
        found = []
        for shard in (False, True):
            module = Network().to(DEVICE)
            model = self.wrap(module, shard=shard)
            groups = [[module.turned], [t for name, t in module.named_parameters() if name != "turned"]]
            optimizers = [self.optimizer(model, AdamW, group, **ADAM) for group in groups]
            scaler = torch.amp.GradScaler(DEVICE.type, init_scale=64.0)
            for step, (x, y) in enumerate(self.batches()):
                x, y = x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)
                model.zero_grad()
                loss = loss_of(model(x), y)
                if step == 1 and self.rank == 0:
                    loss = loss + module.turned[1, 2] * float("inf")
                scaler.scale(loss).backward()
                for optimizer in optimizers:
                    scaler.unscale_(optimizer)
                for optimizer in optimizers:
                    scaler.step(optimizer)
                scaler.update()
            self.assertEqual(scaler.get_scale(), 32)
            found.append(on_cpu(module.parameters()))
        self.same(*found, 0)
        model.zero_grad()
        scaler.scale(loss_of(model(x), y)).backward()
        scaler.step(optimizers[0])
        with self.raises(ddp.InvalidStateError, "scaler.unscale_(optimizer)", "before the first scaler.step()"):
            scaler.step(optimizers[1])

    @unittest.skipUnless(DEVICE.type == "cuda", "PyTorch tells it for CUDA")
    def test_the_host_does_not_wait(self):
        if self.world > 1:
            return  # memory of the host is waited for, unless the backend is NCCL
        model = self.wrap(Network().to(DEVICE), shard=True)
        optimizer = ShardedOptimizer(model, AdamW, **ADAM)
        x, y = torch.randn(PART, 5, device=DEVICE), torch.randn(PART, 4, device=DEVICE)
        for step in range(6):
            torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
            try:
                loss_of(model(x), y).backward()
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main(__name__)
