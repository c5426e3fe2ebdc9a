"""ddp.torch.DistributedDataParallel where types differ: gradients of another type than their parameters (grad_dtype of PyTorch 2.10).

    torch_types_test.py     on 1, 2 and 3 ranks. DDP_TORCH_PYTHON names a Python with a newer PyTorch, if this one's is older
"""
import copy

import support
import torch_case

torch_case.need(2, 10)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import ddp  # noqa: E402
from ddp.torch import DistributedDataParallel  # noqa: E402

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
VIEWS = ({}, {"gradient_as_bucket_view": True})


class Wide(nn.Module):
    """In bfloat16 with gradients of f32, but for one layer."""

    def __init__(self, of_grad=F32):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last, self.plain = nn.Linear(6, 9), nn.Linear(9, 5), nn.Linear(5, 4)
        self.to(BF16)
        for tensor in (*self.first.parameters(), *self.last.parameters()):
            tensor.grad_dtype = of_grad

    def forward(self, x):
        return self.plain(torch.tanh(self.last(torch.tanh(self.first(x)))))


class Branches(Wide):
    """`second` says whether this rank uses `last`."""

    second = True

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x) if self.second else self.plain(x[:, :5])


class Types(torch_case.OnRanks):
    def inputs_of(self, rank, number=0):
        torch.manual_seed(100 * rank + number)
        return torch.randn(3, 6).to(BF16)

    def mean_of(self, module, numbers=(0,), prepare=lambda module, rank: None):
        """The sum of what each rank has accumulated in .grad alone, as f64, over the world size; and how exact a type can be."""
        sums = None
        for rank in range(self.world):
            alone = copy.deepcopy(module)
            for one, other in zip(alone.parameters(), module.parameters()):
                one.grad_dtype = other.grad_dtype
            alone.zero_grad()
            prepare(alone, rank)
            for number in numbers:
                alone(self.inputs_of(rank, number)).square().sum().backward()
            grads = [torch.zeros_like(p, dtype=F64) if p.grad is None else p.grad.double() for p in alone.parameters()]
            sums = grads if sums is None else [a + b for a, b in zip(sums, grads)]
        return [grad / self.world for grad in sums]

    def compare(self, module, expected):
        """To rounding in the type of the gradient. f32 gradients that had been rounded to bfloat16 would be 1,000 times as far away."""
        for (name, tensor), wanted in zip(module.named_parameters(), expected):
            self.assertIs(tensor.grad.dtype, tensor.grad_dtype or tensor.dtype, name)
            bound = torch.finfo(tensor.grad.dtype).eps * max(1e-6, wanted.abs().max().item())
            self.assertLessEqual((tensor.grad.double() - wanted).abs().max().item(), bound, name)

    def test_the_mean_is_as_exact_as_the_gradients(self):
        for of_grad in (F32, F64):
            for options in (*VIEWS, {"static_graph": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 0.0001}):
                with self.subTest(options, of_grad=of_grad):
                    module = Wide(of_grad)
                    if self.rank:
                        with torch.no_grad():
                            module.first.weight.add_(1)  # rank 0's values count
                    model = DistributedDataParallel(module, **options)
                    self.assertTrue(torch.equal(module.first.weight, Wide().first.weight))
                    for number in range(3):  # with a rebuild of the buckets
                        model.zero_grad(set_to_none=number != 1)
                        model(self.inputs_of(self.rank, number)).square().sum().backward()
                        self.compare(module, self.mean_of(module, (number,)))

    def test_accumulation(self):
        for options in VIEWS:
            module = Wide()
            model = DistributedDataParallel(module, **options)
            for _ in range(2):
                model.zero_grad()
                with model.no_sync():
                    model(self.inputs_of(self.rank, 0)).square().sum().backward()
                model(self.inputs_of(self.rank, 1)).square().sum().backward()
                self.compare(module, self.mean_of(module, (0, 1)))

    def test_unused(self):
        for options in VIEWS:
            module = Branches()
            model = DistributedDataParallel(module, find_unused_parameters=True, **options)

            def choose(module, rank):
                module.second = rank == 0

            for _ in range(2):
                model.zero_grad()
                choose(module, self.rank)
                model(self.inputs_of(self.rank)).square().sum().backward()
                expected = self.mean_of(module, prepare=choose)
                if self.world == 1:
                    self.assertIsNone(module.plain.weight.grad)
                    module.plain.weight.grad, module.plain.bias.grad = (torch.zeros_like(p) for p in module.plain.parameters())
                self.compare(module, expected)

    def test_hooks_see_the_gradients_type(self):
        module, seen = Wide(), []

        def hook(group, bucket):
            for gradient, tensor in zip(bucket.gradients(), bucket.parameters()):
                self.assertEqual((gradient.shape, gradient.dtype, tensor.dtype), (tensor.shape, tensor.grad_dtype, BF16))
                seen.append(gradient.dtype)
            group.allreduce(bucket.buffer(), "avg")
            return bucket.buffer()

        model = DistributedDataParallel(module)
        model.register_comm_hook(self.group, hook)
        model(self.inputs_of(self.rank)).square().sum().backward()
        self.compare(module, self.mean_of(module))
        self.assertEqual(sorted(map(str, seen)), ["torch.bfloat16"] * 2 + ["torch.float32"] * 4)

    def test_sparse_gradients(self):
        module = nn.Embedding(8, 3, sparse=True).to(BF16)
        module.weight.grad_dtype = F32
        model = DistributedDataParallel(module)
        weight = torch.full((3,), 1 + 2.0**-10 * (1 + self.rank))  # which bfloat16 rounds to 1
        (model(torch.tensor([self.rank, 7])).float() * weight).sum().backward()
        alone = nn.Embedding(8, 3, sparse=True).to(BF16)
        alone.weight.grad_dtype = F32
        for rank in range(self.world):
            (alone(torch.tensor([rank, 7])).float() * torch.full((3,), 1 + 2.0**-10 * (1 + rank))).sum().backward()
        self.assertIs(module.weight.grad.dtype, F32)
        apart = module.weight.grad.to_dense() - alone.weight.grad.to_dense() / self.world
        self.assertLess(apart.abs().max().item(), 1e-6)

    def test_a_change_registers_again(self):
        module = Wide(BF16)
        model = DistributedDataParallel(module)
        model(self.inputs_of(self.rank)).square().sum().backward()
        before = model.context
        model.zero_grad()
        module.first.weight.grad_dtype = F32
        model(self.inputs_of(self.rank)).square().sum().backward()
        self.assertIsNot(model.context, before)
        self.compare(module, self.mean_of(module))

    def test_a_gradient_of_a_type_that_nobody_announced(self):
        class Widens(torch.autograd.Function):
            """Its gradient is f32."""

            @staticmethod
            def forward(ctx, weight):
                return weight.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad.float()

        class Free(nn.Linear):
            def forward(self, x):
                return x @ Widens.apply(self.weight).t()

        for options in VIEWS:
            module = Free(6, 4, bias=False).to(BF16)
            module.weight.grad_dtype = None
            model = DistributedDataParallel(module, process_group=support.alone(), **options)
            with support.raises(self, ddp.UnsupportedError, "weight", "torch.float32", "torch.bfloat16", "grad_dtype"):
                model(self.inputs_of(self.rank)).sum().backward()

    def test_ranks_that_disagree(self):
        if self.world == 1:
            return
        module = Wide()
        if self.rank == 1:
            module.last.bias.grad_dtype = BF16
        with support.raises(self, ddp.MismatchError, "last.bias", "with gradients f32"):
            DistributedDataParallel(module)


support.main((1, 2, 3))
