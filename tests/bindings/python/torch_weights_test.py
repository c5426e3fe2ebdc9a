"""The weighted mean of ddp.torch.DistributedDataParallel: set_weight says what a rank's batch counts.

    torch_weights_test.py     on 2 and on 3 ranks
"""
import copy

import support
from torch_case import Network, OnRanks

import torch
from torch import nn

import ddp
from ddp.torch import DistributedDataParallel

BOUND = 1e-5


class Branches(nn.Module):
    """`second` says whether a rank uses `last`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 2)
        self.second = True

    def forward(self, x):
        return self.last(self.first(x)) if self.second else self.first(x)


class Weights(OnRanks):
    def samples(self, rank, step=0):
        """Samples of a rank: as many as its weight, and others in each step."""
        torch.manual_seed(10 * step + rank)
        return torch.randn(2 * rank + 1 + step, 3)

    def whole(self, module, batches):
        """The gradients of one process that has all samples."""
        alone = copy.deepcopy(module)
        alone.zero_grad()
        alone(torch.cat(batches)).square().mean().backward()
        return [tensor.grad for tensor in alone.parameters()]

    def compare(self, module, expected):
        for (name, tensor), wanted in zip(module.named_parameters(), expected):
            self.assertLess((tensor.grad - wanted).abs().max().item(), BOUND, name)

    def test_the_mean_over_samples(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
            module = Network()
            model = DistributedDataParallel(module, weighted_mean=True, **options)
            for step in range(3):
                batches = [self.samples(rank, step) for rank in range(self.world)]
                model.zero_grad()
                output = model(batches[self.rank])
                model.set_weight(torch.tensor(len(output)) if step == 1 else len(output))
                output.square().mean().backward()
                self.compare(module, self.whole(module, batches))

    def test_shares_of_a_batch(self):
        """The mean is that of the global batch, before the shares change and after that."""
        module = Network()
        model = DistributedDataParallel(module, weighted_mean=True, share_batch=(12 * self.world, 2))
        for step in range(20):
            torch.manual_seed(step)
            batch = torch.randn(12 * self.world, 3)
            mine = model.context.batch_share()
            model.set_weight(len(mine))
            model(batch[mine.start:mine.stop]).square().mean().backward()
            self.compare(module, self.whole(module, [batch]))
            model.context.batch_time(len(mine) * (1e-3 if self.rank == 0 else 1e-6))
            model.zero_grad()
        if self.rank == 0 and self.world > 1:
            self.assertEqual(len(model.context.batch_share()), 2)

    def test_micro_batches(self):
        """The weight is that of all of them, and each loss has its part."""
        for before in (True, False):
            module = Network()
            model = DistributedDataParallel(module, weighted_mean=True)
            parts = [[self.samples(rank, step) for step in range(2)] for rank in range(self.world)]
            mine = sum(map(len, parts[self.rank]))
            if before:
                model.set_weight(mine)
            with model.no_sync():
                (model(parts[self.rank][0]).square().mean() * len(parts[self.rank][0]) / mine).backward()
            if not before:
                model.set_weight(mine)
            (model(parts[self.rank][1]).square().mean() * len(parts[self.rank][1]) / mine).backward()
            self.compare(module, self.whole(module, [batch for each in parts for batch in each]))

    def test_a_weight_for_each_micro_batch(self):
        model = DistributedDataParallel(Network(), process_group=support.alone(), weighted_mean=True)
        with model.no_sync():
            with support.raises(self, ddp.InvalidStateError, "set_weight", "no_sync()", "all micro-batches"):
                model.set_weight(1)
        model.set_weight(1)
        model.set_weight(2)  # another batch instead: nothing was added up
        with model.no_sync():
            model(self.inputs()).sum().backward()
        with support.raises(self, ddp.InvalidStateError, "set_weight", "one weight", "micro-batches"):
            model.set_weight(1)
        model(self.inputs()).sum().backward()
        model.set_weight(1)

    def test_a_rank_without_samples(self):
        """Its gradient counts for nothing, whatever is in it."""
        module = Network()
        model = DistributedDataParallel(module, weighted_mean=True)
        batches = [self.samples(rank, 1) for rank in range(self.world)]
        model.set_weight(0 if self.rank == 1 else len(batches[self.rank]))
        (model(batches[self.rank]).square().mean() * (float("inf") if self.rank == 1 else 1)).backward()
        self.compare(module, self.whole(module, batches[:1] + batches[2:]))

    def test_no_rank_has_samples(self):
        model = DistributedDataParallel(Network(), weighted_mean=True)
        model.set_weight(0)
        with support.raises(self, ValueError, "weights of all ranks", "sum to 0"):
            model(self.inputs()).sum().backward()

    def test_a_rank_that_forgets(self):
        module = Network()
        model = DistributedDataParallel(module, process_group=support.alone(), weighted_mean=True)
        for kind in ("never", "once for two passes"):
            if kind != "never":
                model.set_weight(3)
                output = model(self.inputs()).sum()
                output.backward(retain_graph=True)
            else:
                output = model(self.inputs()).sum()
            before = None if module.first.weight.grad is None else module.first.weight.grad.clone()
            with support.raises(self, ddp.InvalidStateError, "no weight", "set_weight", "before backward()"):
                output.backward()
            del output, before

    def test_a_weight_that_nobody_wants(self):
        model = DistributedDataParallel(Network(), process_group=support.alone())
        with support.raises(self, ddp.InvalidStateError, "set_weight", "weighted_mean=True"):
            model.set_weight(1)
        model = DistributedDataParallel(Network(), process_group=support.alone(), weighted_mean=True)
        for wrong in (-1, float("nan"), float("inf")):
            with support.raises(self, ValueError, "set_weight", "0 or more"):
                model.set_weight(wrong)

    def test_ranks_that_disagree(self):
        with support.raises(self, ddp.MismatchError):
            DistributedDataParallel(Network(), weighted_mean=self.rank == 0)

    def test_a_hook(self):
        """It gets gradients that are multiplied, so that their mean is the weighted one."""
        module = Network()
        model = DistributedDataParallel(module, weighted_mean=True)

        def hook(group, bucket):
            group.allreduce(bucket.buffer(), "sum")
            return bucket.buffer().div(group.world_size)

        model.register_comm_hook(self.group, hook)
        batches = [self.samples(rank) for rank in range(self.world)]
        model.set_weight(len(batches[self.rank]))
        model(batches[self.rank]).square().mean().backward()
        self.compare(module, self.whole(module, batches))

    def test_unused_on_a_rank(self):
        module = Branches()
        model = DistributedDataParallel(module, find_unused_parameters=True, weighted_mean=True)
        for step in range(2):
            model.zero_grad()
            module.second = self.rank == 0
            model.set_weight(self.rank + 1)
            model(self.samples(self.rank, step)).square().mean().backward()
            expected, total = None, sum(range(1, self.world + 1))
            for rank in range(self.world):
                alone = copy.deepcopy(module)
                alone.second = rank == 0
                alone.zero_grad()
                alone(self.samples(rank, step)).square().mean().backward()
                grads = [(0 if p.grad is None else p.grad) * (rank + 1) / total for p in alone.parameters()]
                expected = grads if expected is None else [a + b for a, b in zip(expected, grads)]
            self.compare(module, expected)

    def test_uneven_inputs(self):
        """A rank without inputs has no weight."""
        for to_initial in (True, False):
            module = Network()
            model = DistributedDataParallel(module, weighted_mean=True)
            with model.join(divide_by_initial_world_size=to_initial):
                for step in range(1 + self.rank):
                    model.zero_grad()
                    batch = self.samples(self.rank, step)
                    model.set_weight(len(batch))
                    model(batch).square().mean().backward()
                    self.compare(module, self.whole(module, [self.samples(rank, step) for rank in range(step, self.world)]))


support.main((2, 3))
