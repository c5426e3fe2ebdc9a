"""The PyTorch example gets the weights of one process on the global batch, however the program zeroes gradients.

    zero_grad_test.py EXAMPLE COUNT...      with that DataParallel, on so many ranks
"""
import contextlib
import importlib
import pathlib
import sys

import ddp
import support

support.need("torch")

import torch  # noqa: E402  (only where it is)
from torch import nn  # noqa: E402

STEPS, PART, RATE = 4, 6, 0.1  # PART: of each batch on each rank, in two halves where gradients add up
BOUND = 1e-5  # rounding: another order of additions. One gradient that is counted twice moves weights by 0.01


def each_gradient(change):
    """A way that does something to every gradient there is."""

    def zero(model, _):
        for tensor in model.parameters():
            if tensor.grad is not None:
                change(tensor)

    return zero


def replace(tensor):
    tensor.grad = torch.zeros_like(tensor.grad)


def drop(tensor):
    tensor.grad = None


@torch.no_grad()
def drop_every_other(model, _):
    for i, tensor in enumerate(model.parameters()):
        if tensor.grad is not None and i % 2:
            tensor.grad = None
        elif tensor.grad is not None:
            tensor.grad.zero_()


# For each way: the function that is called once a step, and how many backward passes add up in a step.
WAYS = {
    "optimizer, to None": (lambda model, optimizer: optimizer.zero_grad(set_to_none=True), 1),
    "optimizer, in place": (lambda model, optimizer: optimizer.zero_grad(set_to_none=False), 1),
    "optimizer, as it likes": (lambda model, optimizer: optimizer.zero_grad(), 1),
    "module, to None": (lambda model, optimizer: model.zero_grad(set_to_none=True), 1),
    "module, in place": (lambda model, optimizer: model.zero_grad(set_to_none=False), 1),
    "grad.zero_()": (each_gradient(lambda tensor: tensor.grad.zero_()), 1),
    "grad.mul_(0.5)": (each_gradient(lambda tensor: tensor.grad.mul_(0.5)), 1),  # what is left is added to, as ever
    "grad = zeros": (each_gradient(replace), 1),
    "grad = None": (each_gradient(drop), 1),
    "every other to None": (drop_every_other, 1),
    "never": (lambda model, optimizer: None, 1),
    "two backward passes, to None": (lambda model, optimizer: optimizer.zero_grad(set_to_none=True), 2),
    "two backward passes, in place": (lambda model, optimizer: optimizer.zero_grad(set_to_none=False), 2),
    "two backward passes, never": (lambda model, optimizer: None, 2),
}


class Model(nn.Module):
    """With a weight that is used twice, and one whose gradient PyTorch gives in another order of memory."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.twice, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.turned = nn.Parameter(torch.randn(3, 4) / 4)

    def forward(self, x):
        return torch.tanh(self.last(torch.tanh(self.twice(torch.tanh(self.twice(self.first(x))))))) @ self.turned


def train(zero, passes, moment, parallel_of, mine):
    """The weights after some steps on `mine` of each batch. moment: when gradients are zeroed."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    parallel = parallel_of(model)
    inputs = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        x, y = (torch.randn(PART * WORLD, size, generator=inputs)[mine] for size in (5, 4))
        if moment == "before":
            zero(model, optimizer)
        for part in range(passes):
            adding = parallel.ctx.no_sync() if parallel and part + 1 < passes else contextlib.nullcontext()
            with adding:
                if parallel:
                    parallel.begin()
                if moment == "within" and part == 0:
                    zero(model, optimizer)
                (nn.functional.mse_loss(model(x[part::passes]), y[part::passes]) / passes).backward()
                if parallel:
                    parallel.finish()
        optimizer.step()
    return torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def main(example, group):
    wrong = []
    for name, (zero, passes) in WAYS.items():
        # Halves of the parts, so that each pass has as many samples of each rank, here and alone.
        for moment in ("before", "within"):
            mine = slice(group.rank * PART, (group.rank + 1) * PART)
            got = train(zero, passes, moment, lambda model: example.DataParallel(model, group), mine)
            alone = train(zero, passes, moment, lambda model: None, slice(None))
            apart = (got - alone).abs().max().reshape(1)
            group.allreduce(apart, "max")
            right = apart.item() <= BOUND
            if not right:
                wrong.append(name)
            if group.rank == 0:
                print(f"{name}, {moment} the step: {apart.item():.3g} from one process{'' if right else ', WRONG'}")
    return 1 if wrong else 0


if support.RANK < 0:
    for count in sys.argv[2:]:
        print(support.run_ranks(int(count), sys.executable, "-B", sys.argv[0], sys.argv[1], timeout=100))
    sys.exit()

torch.set_num_threads(1)
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))
WORLD = ddp.environment().world_size
with ddp.Group() as ranks:
    sys.exit(main(importlib.import_module(pathlib.Path(sys.argv[1]).stem), ranks))
