"""A step of a small residual network with ddp.torch.DistributedDataParallel and with PyTorch's own over Gloo, in turns.

    ddprun -n 2 python3 torch_adapter.py [--backend shm] [--rounds 15]

Prints the median milliseconds of a step on the slower rank, for gradients that are views of buckets and that are copied, and the
median over the rounds of ours / theirs.
"""
import argparse
import statistics
import time

import torch
from torch import distributed, nn

import ddp
from ddp.torch import DistributedDataParallel

STEPS = 4  # in each turn


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                                  nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))


def network():
    torch.manual_seed(1)
    sizes = [16, 64, 128, 256, 512]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *(Block(a, b, 2) for a, b in zip(sizes, sizes[1:])), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(512, 10))


def milliseconds(model, optimizer, x, y):
    start = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return 1e3 * (time.perf_counter() - start) / STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    group = ddp.Group(backend=options.backend)
    port = torch.zeros(1, dtype=torch.int64)
    if group.rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, group.world_size, True, wait_for_workers=False)
        port[0] = store.port
    group.broadcast(port, 0)
    if group.rank != 0:
        store = distributed.TCPStore("127.0.0.1", int(port), group.world_size, False)
    distributed.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
    for view in (True, False):
        sides = [DistributedDataParallel(network(), process_group=group, gradient_as_bucket_view=view),
                 nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=view)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in sides]
        times = [[], []]
        for number in range(options.rounds + 2):
            for model, optimizer, found in zip(sides, optimizers, times):
                group.barrier()
                slowest = torch.tensor([milliseconds(model, optimizer, x, y)])
                group.allreduce(slowest, "max")
                if number >= 2:  # buckets are rebuilt in the second step
                    found.append(slowest.item())
        same = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(sides[0].module.parameters(), sides[1].module.parameters()))
        if group.rank == 0:
            ratio = statistics.median(a / b for a, b in zip(*times))
            print(f"{'views' if view else 'copies'}: libddp {statistics.median(times[0]):.1f} ms, PyTorch over Gloo "
                  f"{statistics.median(times[1]):.1f} ms: {ratio:.3f}; the weights are {'the same' if same else 'DIFFERENT'}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
