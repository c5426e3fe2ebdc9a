"""Optimizers that step in the backward pass of ddp.torch.DistributedDataParallel, by _apply_optimizer_in_backward and by PyTorch's recipe
with register_post_accumulate_grad_hook: they get the mean, as soon as it is there.

    torch_optimizers_test.py     on 2 and on 3 ranks. DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
"""
import copy
import threading

import support
import torch_case

torch_case.need(2, 1)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.optim import _apply_optimizer_in_backward  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

import ddp  # noqa: E402
from ddp.torch import DistributedDataParallel  # noqa: E402

BOUND, RATE = 1e-5, 0.1
OPTIONS = ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 0.0001})


class Network(torch_case.Network):
    """With a layer that only some ranks use."""

    def __init__(self):
        super().__init__()
        self.extra, self.with_extra = nn.Linear(2, 2), True

    def forward(self, x):
        x = super().forward(x)
        return self.extra(x) if self.with_extra else x


def by_recipe(module):
    """"How to save memory by fusing the optimizer step into the backward pass", a tutorial of PyTorch."""
    optimizers = {p: torch.optim.SGD([p], lr=RATE) for p in module.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    return [p.register_post_accumulate_grad_hook(step) for p in module.parameters()]


def by_function(module):
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": RATE})


class Optimizers(torch_case.OnRanks):
    def alone(self, module, steps):
        """A step of one process that has all inputs: the same, with the number of backward passes in it."""
        for passes in steps:
            sums = [torch.zeros_like(p) for p in module.parameters()]
            for rank in range(self.world):
                other = copy.deepcopy(module)
                for _ in range(passes):
                    other(self.inputs(rank)).square().sum().backward()
                for total, p in zip(sums, other.parameters()):
                    total += 0 if p.grad is None else p.grad / self.world
            with torch.no_grad():
                for total, p in zip(sums, module.parameters()):
                    p -= RATE * total
        return list(module.parameters())

    def compare(self, module, expected):
        for (name, tensor), wanted in zip(module.named_parameters(), expected):
            self.assertLess((tensor - wanted).abs().max().item(), BOUND, name)
            self.assertIsNone(tensor.grad, name)

    def test_they_step_by_the_mean(self):
        for prepare in (by_recipe, by_function):
            for options in OPTIONS:
                for before in (True, False):
                    with self.subTest(options, prepare=prepare.__name__, before=before):
                        module = Network()
                        if before:
                            prepare(module)
                        model = DistributedDataParallel(module, **options)
                        if not before:
                            prepare(module)
                        for _ in range(3):
                            model(self.inputs()).square().sum().backward()
                        self.compare(module, self.alone(Network(), [1, 1, 1]))

    def test_accumulated_gradients_are_one_step(self):
        module = Network()
        model = DistributedDataParallel(module)
        by_recipe(module)
        with model.no_sync():
            model(self.inputs()).square().sum().backward()
        self.assertTrue(torch.equal(module.first.weight, Network().first.weight))
        model(self.inputs()).square().sum().backward()
        self.compare(module, self.alone(Network(), [2]))

    def test_what_another_rank_uses(self):
        """Its mean is everybody's, so everybody's optimizer steps."""
        module = Network()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        by_recipe(module)
        for _ in range(2):
            module.with_extra = self.rank == 0
            model(self.inputs()).square().sum().backward()
        first = module.extra.weight.detach().clone()
        self.group.broadcast(first, 0)
        self.assertTrue(torch.equal(module.extra.weight, first))
        self.assertFalse(torch.equal(module.extra.weight, Network().extra.weight))

    def test_while_later_buckets_travel(self):
        """The last bucket does not end before an optimizer of the first has stepped."""
        for prepare in (by_recipe, by_function):
            module = Network()
            model = DistributedDataParallel(module, bucket_cap_mb=0.00001)
            model(self.inputs()).square().sum().backward()  # after which buckets are built anew, once
            model.zero_grad()
            prepare(module)
            stepped, late = threading.Event(), []
            hook = register_optimizer_step_post_hook(lambda *_: stepped.set())

            def reduce(group, bucket, stepped=stepped, late=late):
                group.allreduce(bucket.buffer, "avg")
                if not bucket.is_last:
                    return None
                work = ddp.Work()

                def end():
                    late.append(not stepped.wait(20))
                    work.complete()

                threading.Thread(target=end).start()
                return work.then(lambda: None)

            before = [p.detach().clone() for p in module.parameters()]
            model.context.set_hook(reduce)
            model(self.inputs()).square().sum().backward()
            hook.remove()
            self.assertEqual(late, [False])
            self.assertTrue(all(not torch.equal(p, old) for p, old in zip(module.parameters(), before)))

    def test_a_hook_that_comes_late(self):
        module = Network()
        model = DistributedDataParallel(module, process_group=support.alone())
        loss = model(self.inputs()).square().sum()
        by_recipe(module)
        with support.raises(self, ddp.InvalidStateError, "register_post_accumulate_grad_hook", "own gradient", "before model(x)"):
            loss.backward()

    def test_a_hook_goes(self):
        module, seen = Network(), []
        model = DistributedDataParallel(module)
        handle = module.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        model(self.inputs()).square().sum().backward()
        handle.remove()
        model(self.inputs()).square().sum().backward()
        self.assertEqual(len(seen), 1)
        del model
        module.zero_grad()
        module.first.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        module(self.inputs()).square().sum().backward()  # without a model it is autograd's
        self.assertEqual(len(seen), 2)

    def test_a_hook_that_fails(self):
        def fail(_):
            raise ValueError("on purpose")

        module = Network()
        model = DistributedDataParallel(module)
        handle = module.last.weight.register_post_accumulate_grad_hook(fail)
        with self.assertRaisesRegex(ValueError, "on purpose"):
            model(self.inputs()).square().sum().backward()
        handle.remove()
        model.zero_grad()
        by_recipe(module)
        model(self.inputs()).square().sum().backward()
        self.compare(module, self.alone(Network(), [1]))


support.main((2, 3))
