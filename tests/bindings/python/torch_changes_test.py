"""ddp.torch.DistributedDataParallel when the module is no longer the registered one, and when gradients come or stay away
in other ways than it expects.

    torch_changes_test.py       on 2 and on 3 ranks
"""
import support
from torch_case import Network, OnRanks  # before PyTorch, which may not be there

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ddp
from ddp.torch import DistributedDataParallel, process_group

MODES = ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True})


class Changes(OnRanks):
    def loss(self, model, rank):
        """The loss over the inputs of one rank."""
        x = torch.ones(2, 3, dtype=next(model.parameters()).dtype) * (1 + rank)
        return model(x).square().sum()

    def step(self, model, rank):
        self.loss(model, rank).backward()

    def check(self, model, bound=1e-5):
        """Some steps: gradients are the means of those that the module alone, without a step, gets from the inputs of each rank."""
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            self.step(model, self.rank)
            trained = [name for name, tensor in model.module.named_parameters() if tensor.requires_grad]
            losses = sum(self.loss(model.module, rank) for rank in range(self.world))
            gradients = torch.autograd.grad(losses, [tensor for tensor in model.module.parameters() if tensor.requires_grad],
                                            allow_unused=True)
            for name, tensor in model.module.named_parameters():
                expected = dict(zip(trained, gradients)).get(name)
                if expected is None:
                    self.assertIsNone(tensor.grad, name)
                else:
                    self.assertEqual(tensor.grad.dtype, tensor.dtype)
                    self.assertLess((tensor.grad - expected / self.world).abs().max().item(), bound, name)
            with torch.no_grad():
                for tensor in model.parameters():
                    if tensor.grad is not None:
                        tensor -= 0.01 * tensor.grad

    def test_converted(self):
        for options in MODES:
            with self.subTest(**options):
                model = DistributedDataParallel(Network(), **options)
                self.check(model)
                model.double()
                with support.raises(self, RuntimeError, "first.weight is torch.float64", "registers the module again"):
                    model.context.average_parameters()
                self.check(model, 1e-12)
                model.to(torch.bfloat16)
                self.check(model, 0.2)
                model.float()
                self.check(model)
                with torch.no_grad():
                    model.module.first.weight.fill_(self.rank)
                model.context.average_parameters()
                self.assertTrue(model.module.first.weight.eq((self.world - 1) / 2).all())

    def test_an_averager_of_memory_that_is_gone(self):
        model = DistributedDataParallel(Network())
        averager = ddp.Averager(model.context, 1)
        model.double()
        self.check(model, 1e-12)
        with self.assertRaises((RuntimeError, ValueError)):
            averager.step()

    def test_other_memory(self):
        """As optimizers do that keep all parameters in one tensor."""
        for options in MODES:
            model = DistributedDataParallel(Network(), **options)
            self.check(model)
            for tensor in model.parameters():
                tensor.data = tensor.data.clone()
            self.check(model)

    def test_replaced_tied_untied_added(self):
        for options in MODES:
            with self.subTest(**options):
                module = Network()
                module.last = nn.Linear(4, 4)
                module.tied = nn.Linear(4, 4)
                module.forward = lambda x: module.tied(module.last(module.first(x)))
                model = DistributedDataParallel(module, **options)
                self.check(model)
                module.tied.weight = module.last.weight
                self.check(model)
                module.tied.weight = nn.Parameter(module.last.weight.detach().clone())
                self.check(model)
                module.first = nn.Linear(3, 4)
                with torch.no_grad():
                    [tensor.fill_(0.1) for tensor in module.first.parameters()]
                self.check(model)
                module.more = nn.Linear(4, 4)
                with torch.no_grad():
                    [tensor.fill_(0.1) for tensor in module.more.parameters()]
                module.forward = lambda x: module.more(module.tied(module.last(module.first(x))))
                self.check(model)

    def test_frozen_and_thawed(self):
        for options in MODES:
            with self.subTest(**options):
                module = Network()
                module.first.requires_grad_(False)
                model = DistributedDataParallel(module, **options)
                self.check(model)
                module.first.requires_grad_(True)
                self.check(model)
                module.last.requires_grad_(False)
                self.check(model)
                module.last.requires_grad_(True)
                self.check(model)

    def test_a_frozen_network_passes_gradients_on(self):
        """As the discriminator of a GAN does while the generator learns."""
        module = Network()
        model = DistributedDataParallel(module)
        for _ in range(3):
            module.requires_grad_(False)
            x = torch.ones(2, 3, requires_grad=True)
            model(x).sum().backward()
            self.assertIsNotNone(x.grad)
            module.requires_grad_(True)
            self.check(model)

    def test_frozen_with_a_gradient_of_no_sync(self):
        module = Network()
        model = DistributedDataParallel(module, process_group=self.group.split(0))
        with model.no_sync():
            self.step(model, self.rank)
        module.first.requires_grad_(False)
        with support.raises(self, RuntimeError, "first.weight was frozen", "no_sync"):
            self.step(model, self.rank)

    def test_a_change_between_no_sync_and_the_step(self):
        model = DistributedDataParallel(Network())
        with model.no_sync():
            self.step(model, self.rank)
        for tensor in model.parameters():
            tensor.data = tensor.data.clone()
        self.step(model, self.rank)
        other = Network()
        for rank in range(self.world):
            self.step(other, rank), self.step(other, rank)
        for one, two in zip(model.parameters(), other.parameters()):
            self.assertLess((one.grad - two.grad / self.world).abs().max().item(), 1e-4)

    def test_module_called_directly(self):
        for options in MODES:
            with self.subTest(**options):
                model = DistributedDataParallel(Network(), **options)
                for _ in range(2):
                    with support.raises(self, RuntimeError, "model(x), not model.module(x)", "has got a gradient"):
                        self.step(model.module, self.rank)
                    self.check(model)
                with model.no_sync():
                    self.step(model.module, self.rank)

    def test_two_wrappers_of_a_module(self):
        module = Network()
        one, two = DistributedDataParallel(module), DistributedDataParallel(module)
        self.check(one)
        self.check(two)

    def test_missing_there_and_then(self):
        module = Network()
        module.never = nn.Linear(2, 2)
        for options, words in (({}, "find_unused_parameters=True"), ({"gradient_as_bucket_view": True}, "find_unused_parameters=True")):
            model = DistributedDataParallel(module, process_group=self.group.split(0), **options)
            with support.raises(self, RuntimeError, "This backward pass gave no gradient for never.weight, never.bias", words):
                self.step(model, self.rank)
            self.group.barrier()  # no rank lets its model go before the others have begun their step

    def test_missing_in_a_static_graph(self):
        module = Network()
        module.never = nn.Linear(2, 2)
        module.use = lambda x: module.never(Network.forward(module, x))
        module.forward = module.use
        model = DistributedDataParallel(module, process_group=self.group.split(0), static_graph=True)
        self.check(model)
        module.forward = lambda x: Network.forward(module, x)
        with support.raises(self, RuntimeError, "never.weight", "static graph"):
            self.step(model, self.rank)
        self.group.barrier()

    def test_two_outputs_with_a_backward_pass_each(self):
        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(4)
                self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

            def forward(self, x):
                return self.left(x), self.right(x)

        model = DistributedDataParallel(Both(), process_group=self.group.split(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            left, right = model(torch.ones(2, 3) * (1 + self.rank))
            left.sum().backward()
            right.sum().backward()
            for tensor in (model.module.left.weight, model.module.right.weight):
                self.assertTrue(tensor.grad.sub(2 * (self.world + 1) / 2).abs().max() < 1e-5)
            optimizer.step()
        model(torch.ones(2, 3))[0].sum().backward()
        with support.raises(self, RuntimeError, "An optimizer steps", "right.weight"):
            optimizer.step()
        self.group.barrier()

    def test_a_block_in_two_segments(self):
        class Twice(Network):
            def forward(self, x):
                x = checkpoint(lambda t: self.square(t).tanh(), x, use_reentrant=True)
                return checkpoint(lambda t: self.square(t).tanh(), x, use_reentrant=True)

            def __init__(self):
                super().__init__()
                del self.first, self.last
                self.square = nn.Linear(3, 3)

        def run(function, rank):
            function(torch.full((2, 3), 0.1 * (1 + rank), requires_grad=True)).square().sum().backward()

        model = DistributedDataParallel(Twice(), process_group=self.group.split(0))
        with support.raises(self, RuntimeError, "square.", "use_reentrant=False", "static_graph=True"):
            run(model, self.rank)
        self.group.barrier()
        model = DistributedDataParallel(Twice(), static_graph=True)
        for _ in range(3):
            model.zero_grad()
            run(model, self.rank)
            other = Twice()
            for rank in range(self.world):
                run(other, rank)
            for one, two in zip(model.parameters(), other.parameters()):
                self.assertLess((one.grad - two.grad / self.world).abs().max().item(), 1e-6)

    def test_a_whole_model_in_a_checkpoint(self):
        for reentrant in (True, False):
            for options in MODES[:3]:
                with self.subTest(reentrant=reentrant, **options):
                    model = DistributedDataParallel(Network(), **options)
                    for _ in range(3):
                        model.zero_grad()
                        x = torch.ones(2, 3).mul_(1 + self.rank).requires_grad_()
                        checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
                        other = Network()
                        for rank in range(self.world):
                            self.step(other, rank)
                        for one, two in zip(model.parameters(), other.parameters()):
                            self.assertLess((one.grad - two.grad / self.world).abs().max().item(), 1e-4)

    def test_unused_in_a_later_backward_pass(self):
        """A gradient that earlier backward passes left in .grad counts, also on a rank that does not use it in the last one."""
        for options in ({"find_unused_parameters": True}, {"static_graph": True}):
            for view in (False, True):
                with self.subTest(view=view, **options):
                    module = Network()
                    module.more = nn.Linear(1, 1, bias=False)
                    model = DistributedDataParallel(module, gradient_as_bucket_view=view, **options)
                    sums = 0
                    for factor in (8, 4, 2):
                        both = self.rank == 0 or (factor == 8 and "static_graph" not in options)
                        module.forward = lambda x, both=both: Network.forward(module, x).sum() + (module.more(x[:1, :1]).sum() if both else 0)
                        (factor * model(torch.ones(2, 3))).backward()
                        ranks = self.world if factor == 8 and "static_graph" not in options else 1
                        sums += factor * ranks / self.world
                        self.assertAlmostEqual(module.more.weight.grad.item(), sums, places=4)

    def test_a_failure_does_not_end_later_models(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(_, x):
                return x.clone()

            @staticmethod
            def backward(_, grad):
                raise MemoryError("batch too large")

        for who in (range(self.world), [0], [self.world - 1]):
            with self.subTest(who=who):
                module = Network()
                if self.rank in who:
                    module.forward = lambda x: module.last(Fails.apply(module.first(x)))
                before, kept = process_group(), None
                with self.assertRaises((MemoryError, ddp.Error)):  # of the others' failure a rank may hear in either call
                    kept = DistributedDataParallel(module)
                    self.step(kept, self.rank)
                model = DistributedDataParallel(Network())  # while the other is still there
                self.assertIsNot(process_group(), before)
                self.check(model)
                del kept
                self.check(model)
        type(self).group = process_group()

    def test_forward_with_normalisation_twice(self):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        model = DistributedDataParallel(module)
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(2):
            model.zero_grad()
            outputs = [model(torch.randn(5, 3, generator=generator)) for _ in range(2)]
            sum(output.pow(3).sum() for output in outputs).backward()
            first = module[0].weight.grad.clone()
            self.group.broadcast(first, 0)
            self.assertTrue(torch.equal(first, module[0].weight.grad))

    def test_a_forward_pass_in_no_sync_between(self):
        """Which forward pass it was counts, not which was the last."""
        for options in MODES[:3]:
            with self.subTest(**options):
                module = nn.Linear(1, 1, bias=False)
                model = DistributedDataParallel(module, **options)
                x = torch.full((1, 1), self.rank + 1.0)
                mean = (self.world + 1) / 2
                synced = model(x).sum()
                with model.no_sync():
                    local = model(10 * x).sum()
                synced.backward()
                self.assertAlmostEqual(module.weight.grad.item(), mean, places=5)
                local.backward()
                self.assertAlmostEqual(module.weight.grad.item(), mean + 10 * (self.rank + 1), places=5)
                model.zero_grad()
                model(x).sum().backward()
                self.assertAlmostEqual(module.weight.grad.item(), mean, places=5)

    def test_a_buffer_that_comes_later(self):
        module = Network()
        model = DistributedDataParallel(module)
        module.register_buffer("late", torch.full((2,), 1.0 + self.rank))
        module.last.register_buffer("later", torch.full((2,), 2.0 + self.rank))
        model(self.inputs())
        self.assertEqual(module.late.tolist() + module.last.later.tolist(), [1, 1, 2, 2])
        model = DistributedDataParallel(module, process_group=self.group.split(0))
        with support.raises(self, RuntimeError, "other buffers", "join"), model.join():
            module.register_buffer("latest", torch.zeros(1))
            model(self.inputs())
        self.group.barrier()

    def test_buffers_in_another_order(self):
        for names, shape in ((("a", "b") if self.rank else ("b", "a"), (2,)), (("a", "b"), (1 + self.rank,))):
            module = Network()
            model = DistributedDataParallel(module, process_group=self.group.split(0))
            for name, extents in zip(names, (shape, tuple(reversed(shape)))):
                module.register_buffer(name, torch.zeros(extents))
            with support.raises(self, ddp.MismatchError, "buffers", "rank 1"):
                model(self.inputs())
            self.group.barrier()

    def test_what_cannot_be_registered_again(self):
        """It says so each time, and goes on when the module can be."""
        module = Network()
        model = DistributedDataParallel(module)
        self.check(model)
        weight = module.first.weight
        module.first.weight = nn.Parameter(torch.ones(4, 3, device="meta"))
        for _ in range(2):
            with support.raises(self, NotImplementedError, "first.weight is on meta"):
                model._check()
        module.first.weight = weight
        self.check(model)

    def test_an_output_that_is_a_parameter(self):
        """It keeps its hooks, so it must not get one in each step."""
        module = Network()
        module.forward = lambda x: (Network.forward(module, x), module.first.weight)
        for options in MODES:
            with self.subTest(**options):
                model = DistributedDataParallel(module, **options)
                for _ in range(3):
                    model.zero_grad()
                    output, weight = model(self.inputs())
                    (output.square().sum() + weight.sum()).backward()
                    other = Network()
                    for rank in range(self.world):
                        (other(self.inputs(rank)).square().sum() + other.first.weight.sum()).backward()
                    for mine, wanted in zip(module.parameters(), other.parameters()):
                        self.assertLess((mine.grad - wanted.grad / self.world).abs().max().item(), 1e-4)
                self.assertFalse(module.first.weight._backward_hooks)

    def test_two_wrappers_in_a_backward_pass(self):
        module = Network()
        one, two = (DistributedDataParallel(module, bucket_cap_mb=0) for _ in range(2))
        for _ in range(3):
            one.zero_grad()
            (one(self.inputs()).square().sum() + two(self.inputs()).square().sum()).backward()
            other = Network()
            for rank in range(self.world):
                self.step(other, rank), self.step(other, rank)
            for mine, wanted in zip(module.parameters(), other.parameters()):
                self.assertLess((mine.grad - wanted.grad / self.world).abs().max().item(), 1e-4)
        for views in ((True, False), (False, True), (True, True)):
            one, two = (DistributedDataParallel(module, process_group=self.group.split(0), gradient_as_bucket_view=view) for view in views)
            with support.raises(self, RuntimeError, "two DistributedDataParallel", "gradient_as_bucket_view"):
                (one(self.inputs()).sum() + two(self.inputs()).sum()).backward()
            self.group.barrier()

    def test_rows_that_other_ranks_use_in_a_static_graph(self):
        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(5)
                self.words, self.last = nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1)

            def forward(self, rank):
                return self.last(self.words(torch.tensor([1])) if rank == 0 else torch.ones(1, 2)).sum()

        module, other = Words(), Words()
        model = DistributedDataParallel(module, static_graph=True)
        other(0).backward()
        for to_none in (True, False, True):
            model.zero_grad(set_to_none=to_none)
            model(self.rank).backward()
            self.assertTrue(torch.allclose(module.words.weight.grad.to_dense(), other.words.weight.grad.to_dense() / self.world))

    def test_sparse_and_dense(self):
        class Words(nn.Module):
            def __init__(self, sparse):
                super().__init__()
                self.words = nn.Embedding(4, 2, sparse=sparse)

            def forward(self, x):
                return nn.functional.embedding(x, self.words.weight, sparse=not self.words.sparse).sum()

        for sparse, words in ((True, ("words.weight", "dense", "sparse=False")), (False, ("words.weight", "sparse_coo", "nn.Embedding"))):
            model = DistributedDataParallel(Words(sparse), process_group=self.group.split(0))
            with support.raises(self, NotImplementedError, *words):
                model(torch.tensor([1])).backward()
            self.group.barrier()


support.main((2, 3))
