"""ddp.torch.ShardedOptimizer: the weights are those of ranks that update all. On 2 and on 3 ranks.

    torch_shards_test.py     DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
"""
import copy
import gc
import io
import pickle
import tempfile
import weakref

import support
import torch_case

torch_case.need(2, 1)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import ddp  # noqa: E402
from ddp.torch import DistributedDataParallel, ShardedOptimizer  # noqa: E402

AdamW, SGD = torch.optim.AdamW, torch.optim.SGD


class Perceptron(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(7, 129), nn.Tanh(), nn.Linear(129, 61), nn.LayerNorm(61), nn.Tanh(), nn.Linear(61, 3))

    @staticmethod
    def inputs(rank, step):
        return torch.sin(torch.arange(35.0).view(5, 7) * (rank + 1) + step)


class Transformer(nn.Module):
    """With one weight for the embedding and the last layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(50, 24)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(24, 3, 40, dropout=0, batch_first=True) for _ in range(2))
        self.last = nn.Linear(24, 50, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

    @staticmethod
    def inputs(rank, step):
        return (torch.arange(30).view(3, 10) * (rank + 3) + step) % 50


class Shards(torch_case.OnRanks):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(timeout=30, deterministic=True)
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    def wrap(self, module, **options):
        return DistributedDataParallel(module, process_group=self.group, bucket_cap_mb=0.02, **options)

    def loss(self, model, kind, step, micro=0):
        return model(kind.inputs(self.rank + 10 * micro, step)).square().mean()

    def train(self, kind, optimizer_class=AdamW, shard=False, steps=10, scheduler=None, micros=1, clip=None, groups=None, overlap=False,
              wrap=None, **options):
        module = kind()
        model = self.wrap(module, **{"shard": shard, **(wrap or {})})
        params = groups(module) if groups else module.parameters()
        if shard:
            optimizer = ShardedOptimizer(params, optimizer_class, overlap_with_ddp=overlap, **options)
        else:
            optimizer = optimizer_class(params, **options)
        scheduler = scheduler(optimizer) if scheduler else None
        for step in range(steps):
            for micro in range(micros):
                if micro + 1 < micros:
                    with model.no_sync():
                        self.loss(model, kind, step, micro).backward()
                else:
                    self.loss(model, kind, step, micro).backward()
            if clip:
                (optimizer.clip_grad_norm_ if shard else lambda norm: nn.utils.clip_grad_norm_(module.parameters(), norm))(clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            optimizer.zero_grad()
        if overlap:
            optimizer.wait_values()
        self.last = model, optimizer
        return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}

    def assert_same(self, found, expected, bound=0.0):
        for name, tensor in expected.items():
            self.assertLessEqual((found[name] - tensor).abs().max().item(), bound, name)
            if not bound:
                self.assertTrue(torch.equal(found[name], tensor), name)

    def test_bits_of_ranks_that_update_all(self):
        for kind in (Perceptron, Transformer):
            for optimizer_class, options in ((AdamW, {"lr": 0.01, "weight_decay": 0.1}), (SGD, {"lr": 0.1, "momentum": 0.9})):
                expected = self.train(kind, optimizer_class, **options)
                for shard in (True, "whole", "replicated", lambda name, tensor: ("whole", 2.0) if tensor.dim() > 1 else "elements"):
                    for overlap in (False, True):
                        with self.subTest(kind=kind.__name__, optimizer=optimizer_class.__name__, shard=shard, overlap=overlap):
                            self.assert_same(self.train(kind, optimizer_class, shard, overlap=overlap, **options), expected)

    def test_a_share_of_the_state(self):
        self.train(Transformer, AdamW, True, lr=0.01)
        mine = torch.tensor([sum(value.numel() for state in self.last[1].optim.state.values() for value in state.values() if value.dim())])
        everything = 2 * sum(tensor.numel() for tensor in self.last[0].module.parameters())
        self.assertLessEqual(mine.item(), everything / self.world * 1.01 + 64)
        self.group.allreduce(mine)
        self.assertEqual(mine.item(), everything)

    def test_no_sync(self):
        for options in ({}, {"gradient_as_bucket_view": True}):
            expected = self.train(Perceptron, micros=3, lr=0.01)
            self.assert_same(self.train(Perceptron, shard=True, micros=3, lr=0.01, wrap=options), expected)

    def test_schedulers_and_groups(self):
        def groups(module):
            decayed = [tensor for tensor in module.parameters() if tensor.dim() > 1]
            return [{"params": decayed, "weight_decay": 0.2}, {"params": [t for t in module.parameters() if t.dim() < 2], "lr": 0.05}]

        def scheduler(optimizer):
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=12)

        options = {"lr": 0.01, "groups": groups, "scheduler": scheduler}
        expected = self.train(Perceptron, **options)
        self.assert_same(self.train(Perceptron, shard=True, **options), expected)
        self.assertEqual(self.last[1].param_groups[0]["weight_decay"], 0.2)
        self.assertEqual(self.last[1].param_groups[1]["eps"], 1e-8)

    def test_clipping(self):
        for norm_type in (2.0, 1.0, float("inf")):
            model = self.wrap(Perceptron(), shard=lambda name, _: "replicated" if "bias" in name else "elements")
            other = self.wrap(Perceptron())
            optimizer = ShardedOptimizer(model, SGD, lr=0.1)
            for each in (model, other):
                self.loss(each, Perceptron, 0).backward()
            found = optimizer.clip_grad_norm_(0.01, norm_type)
            wanted = nn.utils.clip_grad_norm_(other.parameters(), 0.01, norm_type)
            self.assertLess(abs(found.item() / wanted.item() - 1), 1e-5)
            optimizer.step()
            SGD(other.parameters(), 0.1).step()
            self.assert_same(dict(model.named_parameters()), dict(other.named_parameters()), 1e-6)
            with support.raises(self, ddp.InvalidStateError, "no gradients", "between"):
                optimizer.clip_grad_norm_(1)
        self.assert_same(self.train(Transformer, shard=True, lr=0.01, clip=0.1), self.train(Transformer, lr=0.01, clip=0.1), 1e-4)

    def test_a_scaler(self):
        """It finds what is infinite on one rank, or in the pieces of one, on all ranks."""
        if not hasattr(torch.amp, "GradScaler"):
            self.skipTest("PyTorch has no GradScaler for the CPU")
        for owner in (True, "whole", lambda name, _: "replicated" if "bias" in name else "elements"):
            for clip in (None, 0.05):
                found, scales = [], []
                for shard in (False, owner):
                    module = Perceptron()
                    model = self.wrap(module, shard=shard)
                    optimizer = ShardedOptimizer(model, AdamW, lr=0.01) if shard else AdamW(module.parameters(), lr=0.01)
                    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
                    scales.append([])
                    for step in range(5):
                        optimizer.zero_grad()
                        loss = self.loss(model, Perceptron, step)
                        if step == 2 and self.rank == self.world - 1:
                            loss = loss + module[2].bias[60] * float("inf")
                        scaler.scale(loss).backward()
                        if clip:
                            scaler.unscale_(optimizer)
                            (optimizer.clip_grad_norm_ if shard else lambda norm: nn.utils.clip_grad_norm_(module.parameters(), norm))(clip)
                        scaler.step(optimizer)
                        scaler.update()
                        scales[-1].append(scaler.get_scale())
                    found.append(dict(module.named_parameters()))
                self.assertEqual(scales[0], [1024, 2048, 1024, 1024, 2048])
                self.assertEqual(scales[1], scales[0])
                self.assert_same(found[1], found[0], 1e-6 if clip else 0)

    def test_memory_formats_and_types(self):
        class Convolutions(nn.Sequential):
            def __init__(self):
                torch.manual_seed(3)
                super().__init__(nn.Conv2d(3, 17, 3), nn.Tanh(), nn.Conv2d(17, 5, 3), nn.Flatten())
                self.to(memory_format=torch.channels_last)

            @staticmethod
            def inputs(rank, step):
                return torch.sin(torch.arange(2 * 3 * 49.0).view(2, 3, 7, 7) * (rank + 1) + step)

        class Half(Perceptron):
            def __init__(self):
                super().__init__()
                self.bfloat16()

            @staticmethod
            def inputs(rank, step):
                return Perceptron.inputs(rank, step).bfloat16()

        for kind in (Convolutions, Half):
            expected = self.train(kind, lr=0.01)
            for shard in (True, "whole"):
                self.assert_same(self.train(kind, shard=shard, lr=0.01), expected)

    def test_unused_parameters(self):
        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.always, self.extra, self.turn = Perceptron(), nn.Linear(3, 200), 0

            def forward(self, x):
                x = self.always(x)
                self.turn += 1
                return self.extra(x) if self.turn % 2 else x

            inputs = Perceptron.inputs

        wrap = {"find_unused_parameters": True}
        expected = self.train(Partly, lr=0.01, wrap=wrap)
        self.assert_same(self.train(Partly, shard=True, lr=0.01, wrap=wrap), expected)

    def test_frozen_parameters(self):
        results = []
        for shard in (False, True):
            module = Perceptron()
            module[5].bias.requires_grad_(False)
            model = self.wrap(module, shard=shard)
            optimizer = ShardedOptimizer(model.parameters(), AdamW, lr=0.01) if shard else AdamW(model.parameters(), lr=0.01)
            for step in range(6):
                module[2].weight.requires_grad_(step != 3)
                self.loss(model, Perceptron, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0])
        module[5].bias.requires_grad_(True)
        with support.raises(self, ddp.InvalidStateError, "5.bias requires a gradient now", "state of the module as it was", "load its state"):
            self.loss(model, Perceptron, 0).backward()

    def test_options_of_the_module(self):
        def hook(group, bucket):
            half = bucket.buffer().to(torch.float16).div_(group.world_size)
            group.allreduce(half, "sum")
            return bucket.buffer().copy_(half)

        for options in ({"static_graph": True}, {"weighted_mean": True}, {"hook": hook}, {"find_unused_parameters": True},
                        {"skip_all_reduce_unused_params": True, "find_unused_parameters": True}):
            with self.subTest(options):
                options, results = dict(options), []
                function = options.pop("hook", None)
                for shard in (False, True):
                    module = Perceptron()
                    model = self.wrap(module, shard=shard, **options)
                    if function:
                        model.register_comm_hook(self.group, function)
                    optimizer = ShardedOptimizer(model, AdamW, lr=0.01) if shard else AdamW(module.parameters(), lr=0.01)
                    for step in range(4):
                        if "weighted_mean" in options:
                            model.set_weight(self.rank + step)
                        self.loss(model, Perceptron, step).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    results.append(dict(module.named_parameters()))
                self.assert_same(results[1], results[0])

    def test_closures(self):
        results = []
        for shard in (False, True):
            module = Perceptron()
            model = self.wrap(module, shard=shard)
            optimizer = ShardedOptimizer(model, AdamW, lr=0.01) if shard else AdamW(module.parameters(), lr=0.01)
            for step in range(4):
                def closure():
                    optimizer.zero_grad()
                    loss = self.loss(model, Perceptron, step)
                    loss.backward()
                    return loss

                self.assertGreater(optimizer.step(closure).item(), 0)
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0])

    def test_gradients_of_another_type(self):
        if not hasattr(torch.Tensor, "grad_dtype"):
            self.skipTest("PyTorch has no grad_dtype")
        results = []
        for shard in (False, True):
            module = Perceptron().bfloat16()
            for tensor in module.parameters():
                tensor.grad_dtype = torch.float32
            model = self.wrap(module, shard=shard)
            optimizer = ShardedOptimizer(model, SGD, lr=0.1) if shard else SGD(module.parameters(), lr=0.1)
            for step in range(4):
                model(Perceptron.inputs(self.rank, step).bfloat16()).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0])

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
        expected = self.train(Transformer, lr=0.01, steps=4)
        plain = self.last[1].state_dict()
        for shard in (True, "whole", "replicated"):
            self.train(Transformer, shard=shard, lr=0.01, steps=4)
            model, optimizer = self.last
            with support.raises(self, ddp.InvalidStateError, "consolidate_state_dict(to=", "on all ranks"):
                optimizer.state_dict()
            for to in (0, self.world - 1):
                optimizer.consolidate_state_dict(to)
                if self.rank != to:
                    with support.raises(self, ddp.InvalidStateError, "consolidate_state_dict"):
                        optimizer.state_dict()
                    continue
                found = optimizer.state_dict()
                self.assertEqual([{**g, "lr": 0} for g in found["param_groups"]], [{**g, "lr": 0} for g in plain["param_groups"]])
                self.assertEqual(list(found["state"]), list(plain["state"]))
                for number, state in plain["state"].items():
                    for key, value in state.items():
                        self.assertTrue(torch.equal(found["state"][number][key], value), (number, key))
            self.assert_same(dict(model.module.named_parameters()), expected)
            optimizer.consolidate_state_dict()
            self.loss(model, Transformer, 4).backward()
            optimizer.step()
            with support.raises(self, ddp.InvalidStateError, "after the last step()"):
                optimizer.state_dict()

    def test_state_goes_on_elsewhere(self):
        """Saved by all ranks, loaded by other worlds, and by the optimizer that is not sharded."""
        expected = self.train(Transformer, lr=0.01, steps=8)
        self.train(Transformer, shard=True, lr=0.01, steps=4)
        model, optimizer = self.last
        optimizer.consolidate_state_dict()
        saved = self.from_first({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()} if self.rank == 0 else None)
        for shard in (True, "whole", False):
            module = Transformer()
            module.load_state_dict(saved["model"])
            again = self.wrap(module, shard=shard)
            if shard:
                other = ShardedOptimizer(again.parameters(), AdamW, lr=0.5)
            else:
                other = AdamW(again.parameters(), lr=0.5)
            other.load_state_dict(copy.deepcopy(saved["optimizer"]))
            self.assertEqual(other.param_groups[0]["lr"], 0.01)
            for step in range(4, 8):
                self.loss(again, Transformer, step).backward()
                other.step()
                other.zero_grad()
            self.assert_same(dict(module.named_parameters()), expected)
        pair = self.group.split(0 if self.rank < 2 else 1, self.rank)  # a smaller world, where there are three
        results = []
        for shard in (False, True):
            module = Transformer()
            module.load_state_dict(saved["model"])
            again = DistributedDataParallel(module, process_group=pair, shard=shard)
            other = ShardedOptimizer(again, AdamW) if shard else AdamW(again.parameters())
            other.load_state_dict(copy.deepcopy(saved["optimizer"]))
            for step in range(3):
                self.loss(again, Transformer, step).backward()
                other.step()
                other.zero_grad()
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0], 1e-6)

    def test_add_param_group(self):
        results = []
        for shard in (False, True):
            module = Perceptron()
            model = self.wrap(module, shard=shard)
            first, rest = list(module[0].parameters()), list(module.parameters())[2:]
            optimizer = ShardedOptimizer(first, AdamW, lr=0.01) if shard else AdamW(first, lr=0.01)
            for step in range(4):
                self.loss(model, Perceptron, step).backward()
                optimizer.step()
                model.zero_grad()
                if step == 1:
                    optimizer.add_param_group({"params": rest, "lr": 0.02})
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0])
        with support.raises(self, ValueError, "number 0", "not among the parameters"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})

    def test_two_optimizers(self):
        results = []
        for shard in (False, True):
            module = Perceptron()
            model = self.wrap(module, shard=lambda name, t: "whole" if t.dim() == 2 else "elements") if shard else self.wrap(module)
            matrices, vectors = ([t for t in module.parameters() if (t.dim() == 2) is two] for two in (True, False))
            kind = getattr(torch.optim, "Muon", SGD)
            make = ShardedOptimizer if shard else lambda params, what, **options: what(params, **options)
            optimizers = [make(matrices, kind, lr=0.02), make(vectors, AdamW, lr=0.01)]
            for step in range(5):
                self.loss(model, Perceptron, step).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            results.append(dict(module.named_parameters()))
        self.assert_same(results[1], results[0])

    # MISTAKES

    def test_what_cannot_be_sharded(self):
        model = self.wrap(Perceptron(), shard=True)
        for kind, words in ((getattr(torch.optim, "Adafactor", None), ("whole parameters", 'shard="whole"')),
                            (getattr(torch.optim, "Muon", None), ("whole parameters",)), (torch.optim.LBFGS, ("LBFGS cannot be sharded",))):
            if kind is not None:
                with support.raises(self, ddp.UnsupportedError, kind.__name__, *words):
                    ShardedOptimizer(model.parameters(), kind)
        for kind in (torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
                     torch.optim.Adadelta, torch.optim.ASGD, torch.optim.Rprop):
            ShardedOptimizer(model.parameters(), kind, lr=0.1)
            gc.collect()
        if hasattr(torch.optim, "Adafactor"):
            self.assert_same(self.train(Perceptron, torch.optim.Adafactor, "whole"), self.train(Perceptron, torch.optim.Adafactor))
        with support.raises(self, ddp.UnsupportedError, "join", "not with shard"), model.join():
            pass
        with support.raises(self, TypeError, "shard", "an owner"):
            self.wrap(Perceptron(), shard=3)
        with support.raises(self, ValueError, "owner: 'half' is unknown"):
            self.wrap(Perceptron(), shard="half")
        with support.raises(self, ddp.UnsupportedError, "on meta"):
            self.wrap(nn.Linear(2, 2, device="meta"), shard=True)
        gaps = nn.Linear(4, 4)
        gaps.weight = nn.Parameter(torch.zeros(4, 8)[:, ::2])
        with support.raises(self, ddp.UnsupportedError, "weight has gaps", ".contiguous()"):
            self.wrap(gaps, shard=True)

    def test_constructor(self):
        model = self.wrap(Perceptron(), shard=True)
        with support.raises(self, ddp.InvalidStateError, "no optimizer", "ShardedOptimizer(model.parameters()"):
            self.loss(model, Perceptron, 0)
        with support.raises(self, ValueError, "shard=True"):
            ShardedOptimizer(Perceptron().parameters(), AdamW)
        with support.raises(self, TypeError, "optimizer_class"):
            ShardedOptimizer(model.parameters(), AdamW(model.parameters()))
        with support.raises(self, ValueError, "process_group"):
            ShardedOptimizer(model.parameters(), AdamW, ddp.Group(0, 1))
        with support.raises(self, ddp.MismatchError, "params: group 0", "other parameters or options"):
            ShardedOptimizer(model.parameters(), AdamW, lr=0.1 + 0.1 * self.rank)
        with support.raises(self, ddp.MismatchError, "params: group 0", "another optimizer"):
            ShardedOptimizer(model.parameters(), type("Other", (AdamW,), {}) if self.rank else AdamW)
        optimizer = ShardedOptimizer(model.parameters(), AdamW, self.group, parameters_as_bucket_view=True)
        with support.raises(self, ValueError, "has a ShardedOptimizer already"):
            ShardedOptimizer(model.parameters(), SGD, lr=0.1)
        optimizer.step()  # there are no gradients yet, and nothing happens
        self.loss(model, Perceptron, 0).backward()
        for tensor in model.parameters():
            self.assertTrue(tensor.grad.isnan().all())
        for function in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
            with self.assertRaises(RuntimeError):
                function(model.parameters(), 1)
        with support.raises(self, ddp.InvalidStateError, "SGD would update", "ShardedOptimizer(params, SGD"):
            SGD(model.parameters(), 0.1).step()
        optimizer.step()
        self.assertTrue(all(tensor.grad is None for tensor in model.parameters()))
        with support.raises(self, ddp.InvalidStateError, "step() was called twice"):
            optimizer.step()
        with model.no_sync():
            self.loss(model, Perceptron, 1).backward()
        with support.raises(self, ddp.InvalidStateError, "no_sync()"):
            optimizer.step()

    def test_gradients_are_nowhere_else(self):
        """Also of one element: what changes .grad would change nothing."""
        module = nn.Linear(1, 1)
        model = self.wrap(module, shard=True)
        optimizer = ShardedOptimizer(model, AdamW)
        model(torch.ones(2, 1)).sum().backward()
        for function in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
            with self.assertRaises(RuntimeError):
                function(model.parameters(), 1)

    def test_a_step_is_forgotten(self):
        model = self.wrap(Perceptron(), shard=True)
        optimizer = ShardedOptimizer(model.parameters(), AdamW)
        self.loss(model, Perceptron, 0).backward()
        with support.raises(self, ddp.InvalidStateError, "(AdamW) has not stepped since", "step() after each synced backward pass"):
            self.loss(model, Perceptron, 1)
        with torch.no_grad():
            self.loss(model, Perceptron, 1)
        optimizer.step()
        self.loss(model, Perceptron, 1).backward()
        optimizer.step()

    def test_values_are_there_when_they_are_read(self):
        for overlap in (False, True):
            model = self.wrap(Perceptron(), shard=True)
            optimizer = ShardedOptimizer(model, SGD, lr=0.1, overlap_with_ddp=overlap)
            for read in ("parameters", "state_dict", "forward"):
                loss = self.loss(model, Perceptron, 0)
                loss.backward(retain_graph=True)
                optimizer.step()
                if read == "state_dict":
                    values = list(model.state_dict().values())
                else:
                    if read == "forward":
                        model.module(torch.ones(1, 7))
                    elif overlap:
                        optimizer.wait_values()
                    values = [tensor.detach() for tensor in model.parameters()]
                flat = torch.cat([tensor.reshape(-1) for tensor in values])
                everyones = torch.empty(self.world * flat.numel())
                self.group.allgather(everyones, flat)
                for theirs in everyones.view(self.world, -1):
                    self.assertTrue(torch.equal(theirs, flat))
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    loss.backward()  # a graph of the old values
                pickle.dumps(model.module)
                copy.deepcopy(model.module)

    def test_the_module_changes(self):
        module = Perceptron()
        model = self.wrap(module, shard=True)
        optimizer = ShardedOptimizer(model, AdamW)
        self.loss(model, Perceptron, 0).backward()
        optimizer.step()
        module[0].weight = nn.Parameter(torch.zeros(129, 7))
        with support.raises(self, ddp.InvalidStateError, "0.weight is another tensor now", "ShardedOptimizer again, on all ranks"):
            self.loss(model, Perceptron, 1)
        held = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        self.assertIsNone(held())
        optimizer = None
        again = self.wrap(module, shard=True)
        optimizer = ShardedOptimizer(again, AdamW)
        self.loss(again, Perceptron, 1).backward()
        optimizer.step()

    def test_step_fails_on_one_rank(self):
        group = self.group.split(0, self.rank)
        module = Perceptron()
        model = DistributedDataParallel(module, process_group=group, shard=True)
        optimizer = ShardedOptimizer(model, AdamW)
        loss = self.loss(model, Perceptron, 0)
        if self.rank == 1:
            loss.backward()
            optimizer.optim.step = lambda: 1 // 0
            with self.assertRaises(ZeroDivisionError):
                optimizer.step()
        else:
            with support.raises(self, ddp.Error, "rank 1", "optimizer's step() failed in the middle of its update: ZeroDivisionError"):
                loss.backward()
                optimizer.step()
        self.group.barrier()

    def test_beside_zero_redundancy_optimizer(self):
        """The class of PyTorch: the same weights, to rounding."""
        from torch import distributed  # pylint: disable=import-outside-toplevel
        from torch.distributed.optim import ZeroRedundancyOptimizer  # pylint: disable=import-outside-toplevel
        if not distributed.is_gloo_available():
            self.skipTest("no Gloo in this PyTorch")
        path = torch.tensor(list(tempfile.mktemp().encode().ljust(200)), dtype=torch.uint8)
        self.group.broadcast(path, 0)
        distributed.init_process_group("gloo", init_method=f"file://{bytes(path.tolist()).decode().strip()}", rank=self.rank,
                                       world_size=self.world)
        for kind, optimizer_class, options in ((Perceptron, AdamW, {"lr": 0.01}), (Transformer, SGD, {"lr": 0.1, "momentum": 0.9})):
            module = kind()
            model = nn.parallel.DistributedDataParallel(module)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class, **options)
            for step in range(10):
                self.loss(model, kind, step).backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assert_same(self.train(kind, optimizer_class, True, **options), dict(module.named_parameters()), 1e-5)
        del model, optimizer
        distributed.destroy_process_group()


if __name__ == "__main__":
    support.main((2, 3))
