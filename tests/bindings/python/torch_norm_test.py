"""DistributedDataParallel.clip_grad_norm_: norms and gradients are those of torch.nn.utils.clip_grad_norm_. On 1, 2 and 3 ranks."""
import math
import unittest.mock

import support
import torch_case

import torch  # (torch_case skips the test without it)
from torch import nn
from torch.distributed.algorithms.join import Join

import ddp
from ddp.torch import DistributedDataParallel


class Model(nn.Module):
    """With types of many kinds: an embedding whose gradient may be sparse, a layer that not all use, and one in another type."""

    def __init__(self, sparse=False, kind=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(20, 7, sparse=sparse)
        self.last, self.extra, self.with_extra = nn.Linear(7, 129), nn.Linear(129, 3), True
        self.to(kind)

    def forward(self, tokens):
        x = torch.tanh(self.last(self.embedding(tokens)))
        return self.extra(x) if self.with_extra else x


class Norms(torch_case.OnRanks):
    def tokens(self, step):
        return (torch.arange(12).view(3, 4) * (self.rank + 3) + step) % 20

    def backward(self, model, step, factor=1.0):
        (model(self.tokens(step)).square().sum() * factor).backward()

    def check(self, model, step, bound, p, tolerance=1e-5):
        """clip_grad_norm_ against PyTorch's, of copies."""
        parameters = list(model.module.parameters())
        others = [nn.Parameter(tensor.detach().clone()) for tensor in parameters]
        for other, tensor in zip(others, parameters):
            other.grad = None if tensor.grad is None else tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad.detach().clone()
        wanted = nn.utils.clip_grad_norm_(others, bound, p)
        found = model.clip_grad_norm_(bound, p)
        self.assertEqual((found.dtype, found.shape), (wanted.dtype, wanted.shape))
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=0)
        for other, tensor in zip(others, parameters):
            self.assertEqual(other.grad is None, tensor.grad is None)
            if tensor.grad is not None:
                torch.testing.assert_close(tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad, other.grad, rtol=tolerance, atol=tolerance * bound)
        every = torch.empty(self.world, dtype=torch.float64)
        self.group.allgather(every, found.double().reshape(1))
        self.assertEqual(len(set(every.tolist())), 1)  # the same bits on all ranks

    def test_values(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.001}):
            for p in (2.0, 1.0, math.inf):
                with self.subTest(options, p=p):
                    model = DistributedDataParallel(Model(), grad_norm=p, **options)
                    optimizer = torch.optim.SGD(model.parameters(), 0.01)
                    for step in range(3):
                        for bound in (0.5, 1e9)[step % 2:]:
                            optimizer.zero_grad()
                            self.backward(model, step)
                            self.check(model, step, bound, p)
                        optimizer.step()

    def test_votes(self):
        model = DistributedDataParallel(Model(), votes=True)
        for step in range(3):
            if self.rank == step % self.world:
                model.context.vote(ddp.Vote.CHECKPOINT)
            self.backward(model, step)
            self.assertEqual(model.context.votes(), (ddp.Vote.CHECKPOINT, ddp.Vote.CHECKPOINT if self.world == 1 else ddp.Vote(0), 0))
            self.backward(model, step)
            self.assertEqual(model.context.votes().any, ddp.Vote(0))

    def test_types_and_rows(self):
        for kind, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 2e-2)):
            model = DistributedDataParallel(Model(kind=kind), grad_norm=2)
            self.backward(model, 0)
            self.check(model, 0, 0.5, 2.0, tolerance)
        model = DistributedDataParallel(Model(sparse=True), grad_norm=2)
        self.backward(model, 0)
        self.check(model, 0, 0.5, 2.0)

    def test_no_pass_of_pytorchs(self):
        model = DistributedDataParallel(Model(), grad_norm=2)
        self.backward(model, 0)
        with unittest.mock.patch.object(torch.linalg, "vector_norm", side_effect=AssertionError), \
                unittest.mock.patch.object(torch, "norm", side_effect=AssertionError):
            model.clip_grad_norm_(0.5)

    def test_accumulation_and_unused(self):
        module = Model()
        model = DistributedDataParallel(module, grad_norm=2, find_unused_parameters=True)
        for step in range(4):
            module.with_extra = step % 2 == 0
            for tensor in module.parameters():
                tensor.grad = None
            with model.no_sync():
                self.backward(model, step)
                with support.raises(self, ddp.InvalidStateError, "clip_grad_norm_", "synced"):
                    model.clip_grad_norm_(1)
            self.backward(model, step + 1)
            self.check(model, step, 0.5, 2.0)
        with model.no_sync():
            self.backward(model, 0)  # adds to the means
        with support.raises(self, ddp.InvalidStateError, "clip_grad_norm_", "synced"):
            model.clip_grad_norm_(1)

    def test_join(self):
        for by_initial in (True, False):
            model = DistributedDataParallel(Model(), grad_norm=2)
            with model.join(divide_by_initial_world_size=by_initial):
                for step in range(2 + self.rank):
                    model.zero_grad()
                    self.backward(model, step)
                    norm = torch.cat([tensor.grad.reshape(-1) for tensor in model.parameters()]).norm()
                    self.assertLess(abs(model.clip_grad_norm_(1e9) / norm - 1), 1e-5)

    def test_not_finite(self):
        model = DistributedDataParallel(Model(), grad_norm=2)
        self.backward(model, 0, math.nan if self.rank == self.world - 1 else 1.0)
        self.assertTrue(model.clip_grad_norm_(1).isnan())
        self.assertTrue(all(tensor.grad.isnan().all() for tensor in model.parameters()))

    def test_gradients_that_are_others(self):
        model = DistributedDataParallel(Model(), grad_norm=2)
        with support.raises(self, ddp.InvalidStateError, "clip_grad_norm_", "between a synced backward pass"):
            model.clip_grad_norm_(1)
        weight = model.module.last.weight

        def replace():
            weight.grad = weight.grad * 2

        for change in (lambda: weight.grad.mul_(2), replace, lambda: setattr(weight, "grad", None)):
            self.backward(model, 0)
            with torch.no_grad():
                change()
            with support.raises(self, ddp.InvalidStateError, "last.weight", "unscale_", "torch.nn.utils"):
                model.clip_grad_norm_(1)
            model.zero_grad(set_to_none=True)
        self.backward(model, 0)
        self.check(model, 0, 0.5, 2.0)
        with support.raises(self, ddp.InvalidStateError, "clipped", "once"):
            model.clip_grad_norm_(1)

    def test_mistakes(self):
        with support.raises(self, ValueError, "grad_norm", "shard"):
            DistributedDataParallel(Model(), shard=True, grad_norm=2)
        with support.raises(self, ValueError, "3"):
            DistributedDataParallel(Model(), grad_norm=3)
        with support.raises(self, ddp.InvalidStateError, "grad_norm=2.0", "torch.nn.utils"):
            DistributedDataParallel(Model()).clip_grad_norm_(1)
        with support.raises(self, ddp.InvalidStateError, "ShardedOptimizer.clip_grad_norm_"):
            DistributedDataParallel(Model(), shard=True).clip_grad_norm_(1)
        model = DistributedDataParallel(Model(), grad_norm=2)
        self.backward(model, 0)
        with support.raises(self, ValueError, "norm_type", "2-norm", "grad_norm=inf"):
            model.clip_grad_norm_(1, math.inf)


class WithJoin(torch_case.BesidePyTorch):
    tokens, backward = Norms.tokens, Norms.backward

    def test_means_over_the_ranks_that_are_left(self):
        """ddp.torch multiplies libddp's means by a factor then."""
        model = DistributedDataParallel(Model(), grad_norm=2)
        with Join([model], divide_by_initial_world_size=False):
            for step in range(2 + self.rank):
                model.zero_grad()
                self.backward(model, step)
                norm = torch.cat([tensor.grad.reshape(-1) for tensor in model.parameters()]).norm()
                found = model.clip_grad_norm_(0.5)
                self.assertLess(abs(found / norm - 1), 1e-5)
                clipped = torch.cat([tensor.grad.reshape(-1) for tensor in model.parameters()]).norm()
                self.assertLess(abs(clipped / 0.5 - 1), 1e-5)


support.main((1, 2, 3))
