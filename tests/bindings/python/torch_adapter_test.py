"""ddp.torch.DistributedDataParallel beside one process that has the whole batch.

    torch_adapter_test.py       on 2 and on 3 ranks
"""
import copy
import pickle
import tempfile
import unittest

import ddp
import support

support.need("torch")

import torch  # noqa: E402  (only where it is)
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ddp.torch import DistributedDataParallel, group_of, process_group  # noqa: E402

STEPS, PART = 4, 6  # PART: samples of a batch on each rank
BOUND = 1e-5  # rounding: another order of additions. One gradient that is not averaged moves weights by 0.01


class Network(nn.Module):
    """With a weight that is used twice, one whose gradient lies in another order, and a normalisation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.twice, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.turned = nn.Parameter(torch.randn(3, 4) / 4)

    def forward(self, x):
        return torch.tanh(self.last(torch.tanh(self.twice(torch.tanh(self.twice(self.first(x))))))) @ self.turned


class Branches(nn.Module):
    """`choose` says which layer a step uses on this rank; "never" is used by none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleDict({name: nn.Linear(5, 4) for name in ("left", "right", "never")})
        self.choose = ["left"]

    def forward(self, x):
        return {"out": [sum(self.layers[name](x) for name in self.choose)]}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.words, self.last = nn.Embedding(20, 6, sparse=True), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(self.words(x[:, 0].abs().mul(7).long() % 20))


class Turned(nn.Module):
    """With tensors whose elements lie in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.conv = nn.Conv2d(5, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(4, 6).t() / 4)
        self.fixed = nn.Parameter(torch.randn(4, 3).t(), requires_grad=False)
        self.register_buffer("scale", torch.rand(4, 2).t() + 1)
        self.register_buffer("mask", torch.tensor([[True, False, True], [True, True, True]]).t())

    def forward(self, x):
        picture = self.conv(x[:, :, None, None] * self.fixed[None, None, :, :2])  # of 4 channels, 3 x 2
        return (picture.mean(1) * self.mask).flatten(1) @ self.turned * self.scale[0]


class Checkpointed(Network):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Nested(Network):
    """With a backward pass inside the backward pass, in which most gradients come."""

    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=True)

    def rest(self, x):
        return torch.tanh(self.last(torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(x))))))) @ self.turned


class Own(torch.optim.Optimizer):
    """An optimizer of the program."""

    def step(self, closure=None):
        raise AssertionError("it takes gradients of this rank only")


def loss_of(output, y):
    if isinstance(output, dict):
        output = output["out"][0]
    return nn.functional.mse_loss(output, y)


def flat(module):
    return torch.cat([tensor.detach().flatten() for tensor in module.parameters()])


class Adapter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = process_group()
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    def train(self, module, parts, zero=lambda model, optimizer: optimizer.zero_grad(), optimizer=None):
        """`parts` of each batch, by rank; all of them where it is one process."""
        optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        inputs = torch.Generator().manual_seed(4)
        for _ in range(STEPS):
            x, y = (torch.randn(PART * self.world, size, generator=inputs) for size in (5, 4))
            zero(module, optimizer)
            loss_of(module(x[parts]), y[parts]).backward()
            optimizer.step()

    @property
    def mine(self):
        return slice(self.rank * PART, (self.rank + 1) * PART)

    def same_everywhere(self, module, what=""):
        mine, first = flat(module), flat(module)
        self.group.broadcast(first, 0)
        self.assertTrue(torch.equal(mine, first), f"{what}: ranks have different weights")

    def compare(self, make, **options):
        alone, module = make(), make()
        self.train(alone, slice(None))
        if self.rank:
            with torch.no_grad():
                next(iter(module.parameters())).add_(1)  # rank 0's values count
        self.train(DistributedDataParallel(module, **options), self.mine)
        self.same_everywhere(module, options)
        self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND, options)

    def test_weights_are_those_of_one_process(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True},
                        {"bucket_cap_mb": 0}, {"bucket_cap_mb": 0.0001}, {"bucket_cap_mb": 0.0001, "gradient_as_bucket_view": True}):
            with self.subTest(**options):
                self.compare(Network, **options)

    def test_checkpoint_and_sparse(self):
        self.compare(Checkpointed)
        self.compare(Nested)
        self.compare(Words)

    def test_tensors_that_are_not_contiguous(self):
        state = Turned().state_dict()
        for view in (False, True):
            self.compare(Turned, gradient_as_bucket_view=view)
            module = Turned()
            if self.rank:
                for tensor in module.state_dict().values():
                    tensor.zero_()
            model = DistributedDataParallel(module, gradient_as_bucket_view=view)
            for name, tensor in module.state_dict().items():
                self.assertTrue(torch.equal(tensor, state[name]), name)
                self.assertEqual(tensor.stride(), state[name].stride(), name)
            self.train(model, self.mine)
            if not view:
                self.assertEqual(module.conv.weight.grad.stride(), module.conv.weight.stride())
        for tensor in (module.scale, module.mask):
            tensor.copy_(torch.zeros_like(tensor) if self.rank else torch.ones_like(tensor))
        model.eval()(torch.ones(PART, 5))  # sends rank 0's
        self.assertTrue(module.scale.eq(1).all() and module.mask.all())

    def test_uneven_inputs_with_tensors_that_are_not_contiguous(self):
        module = Turned()
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + self.rank):
                module.scale.fill_(1 + step + self.rank)
                optimizer.zero_grad()
                loss_of(model(torch.ones(PART, 5)), torch.zeros(PART, 4)).backward()
                if step:  # the buffers of the lowest rank with inputs
                    self.assertTrue(module.scale.eq(1 + step + max(0, step - 1)).all())
                optimizer.step()
        self.same_everywhere(module)
        self.assertTrue(module.scale.eq(2 * self.world).all())

    def test_tensors_that_libddp_does_not_take(self):
        for words, tensor in (("table: ", torch.zeros(1).expand(5)), ("table is torch.sparse_coo", torch.zeros(3, 3).to_sparse())):
            module = nn.Linear(2, 2)
            module.register_buffer("table", tensor)
            with support.raises(self, (TypeError, NotImplementedError), words):
                DistributedDataParallel(module)

    def test_each_way_to_zero(self):
        for view in (False, True):
            for name, zero in {
                    "to None": lambda model, optimizer: optimizer.zero_grad(set_to_none=True),
                    "in place": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
                    "of the module": lambda model, optimizer: model.zero_grad(),
                    "never": lambda model, optimizer: None}.items():
                with self.subTest(zero=name, view=view):
                    alone, module = Network(), Network()
                    self.train(alone, slice(None), zero)
                    self.train(DistributedDataParallel(module, gradient_as_bucket_view=view), self.mine, zero)
                    self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND)

    def test_no_sync(self):
        for view in (False, True):
            alone, module = Network(), Network()
            model = DistributedDataParallel(module, gradient_as_bucket_view=view)
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, module)]
            inputs = torch.Generator().manual_seed(5)
            for _ in range(STEPS):
                x, y = (torch.randn(2, PART * self.world, size, generator=inputs) for size in (5, 4))
                for optimizer in optimizers:
                    optimizer.zero_grad()
                (loss_of(alone(x[0]), y[0]) + loss_of(alone(x[1]), y[1])).backward()
                with model.no_sync():
                    loss_of(model(x[0, self.mine]), y[0, self.mine]).backward()
                loss_of(model(x[1, self.mine]), y[1, self.mine]).backward()
                for optimizer in optimizers:
                    optimizer.step()
            self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND)

    def test_forward_without_backward(self):
        alone, module = Network(), Network()
        model = DistributedDataParallel(module)
        x = torch.ones(PART, 5)
        for _ in range(3):
            model(x)
            with torch.no_grad():
                model(x)
        self.train(alone, slice(None))
        self.train(model, self.mine)
        self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND)

    def test_branches(self):
        """A parameter that only some ranks use gets their sum over the world size; one that none uses keeps its .grad."""
        for view in (False, True):
            module = Branches()
            model = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=view)
            for turn in range(3):
                module.choose = ["left"] if (self.rank + turn) % 2 else ["left", "right"]
                model.zero_grad(set_to_none=True)
                x, y = torch.ones(PART, 5), torch.zeros(PART, 4)
                loss_of(model(x), y).backward()
                self.assertIsNone(module.layers["never"].weight.grad)
                expected = torch.zeros(4, 5)
                for rank in range(self.world):
                    other = copy.deepcopy(module)
                    other.choose = ["left"] if (rank + turn) % 2 else ["left", "right"]
                    other.zero_grad(set_to_none=True)
                    loss_of(other(x), y).backward()
                    if "right" in other.choose:
                        expected += other.layers["right"].weight.grad / self.world
                self.assertLess((module.layers["right"].weight.grad - expected).abs().max().item(), 1e-6)

    def test_unused_after_a_backward_pass_without_zero_grad(self):
        """A .grad counts with the whole sum of earlier backward passes, also on ranks that do not use it now."""
        for options in ({"find_unused_parameters": True}, {"find_unused_parameters": True, "gradient_as_bucket_view": True}):
            module = Branches()
            model = DistributedDataParallel(module, **options)
            weight = module.layers["right"].weight
            for zero in (False, True, None):  # by zero_grad: not at all; to None; to zeros
                if zero is not False:
                    model.zero_grad(set_to_none=zero is True)
                    module.choose = ["left"]
                    model(torch.ones(PART, 5))["out"][0].sum().backward()  # nobody uses it: the sums before are gone
                    self.assertEqual(0.0, 0.0 if weight.grad is None else weight.grad.abs().max().item())
                module.choose = ["left", "right"]
                model(torch.ones(PART, 5))["out"][0].sum().backward()
                before = weight.grad.clone()
                module.choose = ["left", "right"] if self.rank == 0 else ["left"]
                model(torch.ones(PART, 5))["out"][0].sum().backward()
                other = copy.deepcopy(module)
                other.choose = ["left", "right"]
                other.zero_grad()
                other(torch.ones(PART, 5))["out"][0].sum().backward()
                expected = before + other.layers["right"].weight.grad / self.world
                self.assertLess((weight.grad - expected).abs().max().item(), 1e-5, (options, zero))

    def test_branches_of_a_static_graph(self):
        """A parameter that the first step does not use is unused in all."""
        for find in (False, True):
            alone, module = Branches(), Branches()
            model = DistributedDataParallel(module, static_graph=True, find_unused_parameters=find)
            self.train(alone, slice(None))
            self.train(model, self.mine)
            self.assertIsNone(module.layers["never"].weight.grad)
            self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND)
        with support.raises(self, RuntimeError, "before training loop starts"):
            model._set_static_graph()
        module = Branches()
        module.choose = ["left"] if self.rank else ["left", "right"]
        model = DistributedDataParallel(module, static_graph=True)
        for _ in range(3):
            model.zero_grad()
            loss_of(model(torch.ones(PART, 5)), torch.zeros(PART, 4)).backward()
            first = module.layers["right"].weight.grad.clone()
            self.group.broadcast(first, 0)
            self.assertTrue(torch.equal(first, module.layers["right"].weight.grad))

    def test_part_of_the_output(self):
        """The loss depends on a part of what forward returns."""
        class Both(Branches):
            def forward(self, x):
                return self.layers["left"](x), self.layers["right"](x)

        module, other = Both(), Both()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        for turn in range(3):
            x = torch.ones(PART, 5) * (1 + turn)
            model(x * (1 + self.rank))[0].mean().backward()
            for rank in range(self.world):
                (other(x * (1 + rank))[0].mean() / self.world).backward()
            self.assertIsNone(module.layers["right"].weight.grad)
            self.assertLess((module.layers["left"].weight.grad - other.layers["left"].weight.grad).abs().max().item(), BOUND)

    def test_backward_pass_that_fails_before_the_first_gradient(self):
        def fail(_):
            raise RuntimeError("on purpose")

        for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
            with self.subTest(**options):
                alone, module = Network(), Network()
                model = DistributedDataParallel(module, **options)
                output = model(torch.ones(PART, 5))
                output.register_hook(fail)
                with support.raises(self, RuntimeError, "on purpose"):
                    loss_of(output, torch.zeros(PART, 4)).backward()
                self.train(alone, slice(None))
                self.train(model, self.mine)
                self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND)

    def test_no_sync_of_branches(self):
        """A layer that only the steps in no_sync use takes part in the mean all the same."""
        module, other = Branches(), Branches()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        x, y = torch.ones(PART, 5), torch.zeros(PART, 4)
        with model.no_sync():
            module.choose = ["right"]
            loss_of(model(x * (1 + self.rank)), y).backward()
        module.choose = ["left"]
        loss_of(model(x), y).backward()
        other.choose = ["right"]
        for rank in range(self.world):
            (loss_of(other(x * (1 + rank)), y) / self.world).backward()
        self.assertLess((module.layers["right"].weight.grad - other.layers["right"].weight.grad).abs().max().item(), 1e-5)

    def test_frozen_parameters_are_those_of_rank_0(self):
        module = Network()
        for tensor in module.first.parameters():
            tensor.requires_grad_(False)
            tensor.add_(self.rank)
        DistributedDataParallel(module)
        self.assertTrue(torch.equal(flat(module), flat(Network())))

    def test_group_of_torch_distributed(self):
        """Its ranks, and hooks that PyTorch brings, which communicate through it."""
        from torch import distributed
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        path = torch.tensor(list(tempfile.mktemp().encode().ljust(200)), dtype=torch.uint8)
        self.group.broadcast(path, 0)
        distributed.init_process_group("gloo", init_method=f"file://{bytes(path.tolist()).decode().strip()}", rank=self.rank,
                                       world_size=self.world)
        try:
            self.assertIs(process_group(), self.group)  # the launcher's, which has the same ranks
            group = group_of(distributed.group.WORLD)
            self.assertEqual((group.rank, group.world_size), (self.rank, self.world))
            self.assertIs(group_of(distributed.group.WORLD), group)
            for hook, state in ((default_hooks.allreduce_hook, None), (default_hooks.fp16_compress_hook, None),
                                (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2))):
                alone, module = Network(), Network()
                model = DistributedDataParallel(module, process_group=distributed.group.WORLD)
                model.register_comm_hook(state, hook)
                self.train(alone, slice(None))
                self.train(model, self.mine)
                self.same_everywhere(module, hook.__name__)
                self.assertLess((flat(alone) - flat(module)).abs().max().item(), BOUND if hook is default_hooks.allreduce_hook else 0.05)
            pair = distributed.new_group([0, 1])
            if self.rank < 2:
                self.assertEqual(group_of(pair).world_size, 2)
            else:
                with support.raises(self, ValueError, "process_group", "not in it"):
                    group_of(pair)
        finally:
            distributed.destroy_process_group()

    def test_missing_gradient(self):
        module = Branches()
        model = DistributedDataParallel(module, process_group=self.group.split(0))  # which breaks when it goes
        missing = "layers.never.weight", "layers.right.bias", "find_unused_parameters=True"
        with support.raises(self, RuntimeError, *missing):
            loss_of(model(torch.ones(PART, 5)), torch.zeros(PART, 4)).backward()
        with support.raises(self, RuntimeError, *missing):
            model(torch.ones(PART, 5))
        for optimizer in (torch.optim.SGD(module.parameters(), lr=0.1), Own(module.parameters(), {})):
            with support.raises(self, RuntimeError, "optimizer", *missing):
                optimizer.step()
        self.group.barrier()  # no rank lets its model go before the others have begun their step

    def test_buffers(self):
        module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
        module.register_buffer("mask", torch.tensor([True, False]))
        module.register_buffer("replaced", torch.full((2,), float(self.rank)))
        model = DistributedDataParallel(module)
        module.replaced = torch.full((2,), 7.0 + self.rank)
        inputs = torch.Generator().manual_seed(self.rank)
        for _ in range(STEPS):
            loss_of(model(torch.randn(PART, 5, generator=inputs)), torch.zeros(PART, 4)).backward()
        model.eval()
        with torch.no_grad():
            model(torch.ones(PART, 5))  # sends rank 0's
        self.assertEqual(module.replaced.tolist(), [7.0, 7.0])
        mean = module[1].running_mean.clone()
        self.group.broadcast(mean, 0)
        self.assertTrue(torch.equal(mean, module[1].running_mean))

    def test_state_dict(self):
        model = DistributedDataParallel(Network())
        self.assertEqual(list(model.state_dict()), [f"module.{name}" for name in Network().state_dict()])
        self.train(model, self.mine)
        other = DistributedDataParallel(Network())
        other.load_state_dict(model.state_dict())
        self.assertTrue(torch.equal(flat(other), flat(model)))

    def test_copies(self):
        model = DistributedDataParallel(Network(), gradient_as_bucket_view=True)
        self.train(model, self.mine)
        alone = Network()
        alone.load_state_dict(model.module.state_dict())
        self.train(alone, slice(None))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            self.train(other, self.mine)
            self.assertLess((flat(alone) - flat(other)).abs().max().item(), BOUND)

    def test_hook(self):
        model = DistributedDataParallel(Network(), bucket_cap_mb=0.0003)
        seen = []

        def hook(group, bucket):
            seen.append((bucket.index(), bucket.is_last(), len(bucket.parameters()), [g.shape for g in bucket.gradients()]))
            group.allreduce(bucket.buffer(), "avg")
            future = torch.futures.Future()
            future.set_result(bucket.buffer().clone())
            return future

        model.register_comm_hook(self.group.split(0), hook)
        alone = Network()
        self.train(alone, slice(None))
        self.train(model, self.mine)
        self.assertLess((flat(alone) - flat(model)).abs().max().item(), BOUND)
        self.assertGreater(len(seen), STEPS)
        self.assertTrue(seen[-1][1])
        with support.raises(self, RuntimeError, "register_comm_hook"):
            model.register_comm_hook(None, hook)

    def test_uneven_inputs(self):
        module = Network()
        model = DistributedDataParallel(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for _ in range(2 + self.rank):
                optimizer.zero_grad()
                loss_of(model(torch.ones(PART, 5)), torch.zeros(PART, 4)).backward()
                optimizer.step()
        self.same_everywhere(module)
        self.train(model, self.mine)
        self.same_everywhere(module)
        for divide in (False, True):  # a loss of the time before keeps its graph
            with model.join(divide_by_initial_world_size=divide):
                for step in range(2 + min(self.rank, 1)):
                    model.zero_grad()
                    loss = module.first(torch.ones(1, 5)).sum() + 0 * model(torch.ones(1, 5)).sum()
                    loss.backward()
                    present = self.world if step < 2 or not divide else self.world - 1
                    self.assertAlmostEqual(module.first.bias.grad[0].item(), present / self.world, places=5)
        uneven = DistributedDataParallel(Network())
        with self.assertRaises(ddp.UnevenInputsError):
            with uneven.join(throw_on_early_termination=True):
                for _ in range(2 + self.rank):
                    loss_of(uneven(torch.ones(PART, 5)), torch.zeros(PART, 4)).backward()

    def test_autocast(self):
        model = DistributedDataParallel(Network())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model(torch.ones(PART, 5) * (1 + self.rank)), torch.zeros(PART, 4))
        loss.backward()
        grads = torch.cat([tensor.grad.flatten() for tensor in model.parameters()])
        first = grads.clone()
        self.group.broadcast(first, 0)
        self.assertTrue(torch.equal(grads, first))

    def test_two_backward_passes(self):
        """After one forward pass. The second one adds to the mean, as it adds to .grad without ranks."""
        alone, module = Network(), Network()
        model = DistributedDataParallel(module)
        x, y = torch.randn(PART * self.world, 5), torch.randn(PART * self.world, 4)
        for tensor in (x, y):
            self.group.broadcast(tensor, 0)
        for each, part in ((alone, slice(None)), (model, self.mine)):
            loss = loss_of(each(x[part]), y[part])
            loss.backward(retain_graph=True)
            loss.backward()
        for theirs, ours in zip(alone.parameters(), module.parameters()):
            self.assertLess((theirs.grad - ours.grad).abs().max().item(), BOUND)

    @unittest.skipUnless(hasattr(torch, "compile"), "PyTorch 2 has it")
    def test_compiled(self):
        self.compare(lambda: torch.compile(Network(), backend="aot_eager"))

    def test_arguments(self):
        with support.raises(self, TypeError, "mixed_precision"):
            DistributedDataParallel(Network(), mixed_precision="yes")
        for name, value in {"device_ids": [0], "output_device": 0, "device_mesh": 1, "param_to_hook_all_reduce": 1, "delay_all_reduce_named_params": [("none", 1)]}.items():
            with support.raises(self, (TypeError, ValueError), name):
                DistributedDataParallel(Network(), **{name: value})
        with support.raises(self, TypeError, "process_group", "str"):
            DistributedDataParallel(Network(), process_group="gloo")
        with support.raises(self, ValueError, "bucket_cap_mb"):
            DistributedDataParallel(Network(), bucket_cap_mb=-1)
        with support.raises(self, RuntimeError, "module", "no parameter"):
            DistributedDataParallel(nn.ReLU())

    def test_an_outer_optimizer_is_torch_optim_sgd(self):
        for kind, momentum in (("sgd", 0.0), ("sgd", 0.9), ("nesterov", 0.9)):
            torch.manual_seed(5)
            weight = torch.randn(3000)
            outer = nn.Parameter(weight.clone())
            optimizer = torch.optim.SGD([outer], lr=0.7, momentum=momentum, nesterov=kind == "nesterov")
            with ddp.Context(self.group) as ctx:
                ctx.register("w", weight, torch.zeros(3000))
                ctx.commit()
                averager = ddp.Averager(ctx, 1)
                averager.set_outer(kind, learning_rate=0.7, momentum=momentum)
                averager.step()
                for _ in range(10):
                    moves = torch.randn(self.group.world_size, 3000) / 10  # of all ranks
                    outer.grad = -moves.mean(0)
                    optimizer.step()
                    weight += moves[self.group.rank]
                    averager.step()
                    self.assertLess((weight - outer.detach()).abs().max(), BOUND)


torch.set_num_threads(1)
support.main((2, 3))
