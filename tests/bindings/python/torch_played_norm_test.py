"""torch.nn.SyncBatchNorm in ddp.torch.DistributedDataParallel, on a device whose memory no processor can touch and whose streams are late.

    torch_played_norm_test.py FAKE_DEVICE COMPILER FOLDER RANKS...        as torch_played_test.py

The numbers are those of BatchNorm in one process on the CPU that has the whole batch. PyTorch has the kernels for CUDA only, so they
are here.
"""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
import played  # noqa: E402

played.need()

import support  # noqa: E402

FAKE_DEVICE, COMPILER, FOLDER, *COUNTS = sys.argv[1:]
if support.RANK < 0:
    played.build(COMPILER, FAKE_DEVICE, FOLDER)
    for count in COUNTS:
        print(support.run_ranks(int(count), sys.executable, "-B", *sys.argv))
    sys.exit()

import torch  # noqa: E402
from torch import nn  # noqa: E402

played.load(played.build(COMPILER, FAKE_DEVICE, FOLDER))
from ddp.torch import DistributedDataParallel, process_group  # noqa: E402

DEVICE = torch.device("played:0")
STEPS, PART, BOUND = 4, 6, 1e-12
torch.set_num_threads(1)


def by_channel(x):
    return [dim for dim in range(x.dim()) if dim != 1]


def along(x, values):
    return values.reshape([1, -1] + [1] * (x.dim() - 2))


def stats(x, eps):
    dims = by_channel(x)
    mean = x.mean(dims)
    return mean, torch.rsqrt((x - along(x, mean)).square().mean(dims) + eps)


def gather_stats(_, means, invstds, running_mean, running_var, momentum, eps, counts):
    count, parts = counts.sum(), counts[:, None]
    mean = (means * parts).sum(0) / count
    squares = invstds.reciprocal().square() - eps + means.square()
    var = (squares * parts).sum(0) / count - mean.square()
    running_mean.mul_(1 - momentum).add_(mean * momentum)
    running_var.mul_(1 - momentum).add_(var * (count / (count - 1)) * momentum)
    return mean, torch.rsqrt(var + eps)


def elementwise(x, weight, bias, mean, invstd, _):
    return (x - along(x, mean)) * along(x, invstd * weight) + along(x, bias)


def backward_reduce(grad, x, mean, invstd, *_):
    dims = by_channel(x)
    sums, products = grad.sum(dims), (grad * (x - along(x, mean))).sum(dims)
    return sums, products, products * invstd, sums


def backward_elementwise(grad, x, mean, invstd, weight, sums, products, counts):
    count = counts.sum()
    slope = (x - along(x, mean)) * along(x, invstd.square() * products / count)
    return (grad - along(x, sums / count) - slope) * along(x, invstd * weight)


def by_mask(x, indices):
    """It waits, as on a GPU."""
    return torch.ops.aten.index(x.cpu(), [None if index is None else index.cpu() for index in indices]).to(x.device)


KERNELS = torch.library.Library("aten", "IMPL", "PrivateUse1")
for name, kernel in (("batch_norm_stats", stats), ("batch_norm_gather_stats_with_counts", gather_stats), ("batch_norm_elemt", elementwise),
                     ("batch_norm_backward_reduce", backward_reduce), ("batch_norm_backward_elemt", backward_elementwise), ("index.Tensor", by_mask)):
    KERNELS.impl(name, kernel)


def allgather(group, output, tensor, _options=None):
    """All ranks have as many elements."""
    told = tensor.cpu().flatten()
    parts = [torch.empty_like(told) for _ in range(group.size())]
    group._inner.allgather([parts], [told]).wait()
    output.copy_(torch.cat(parts).view(output.shape))
    done = torch.futures.Future()
    done.set_result([output])
    return torch._C._distributed_c10d._create_work_from_future(done)


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first, self.norm, self.last = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))).mean((2, 3)))


class SyncBatchNorm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        group = process_group()
        cls.rank, cls.world = group.rank, group.world_size
        with tempfile.TemporaryDirectory() as folder:
            name = torch.zeros(200, dtype=torch.uint8)
            name[:len(folder)] = torch.tensor(list(folder.encode()), dtype=torch.uint8)
            group.broadcast(name, 0)
            folder = bytes(name[name != 0].tolist()).decode()
            torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=cls.rank, world_size=cls.world)
            cls.through = played.group_through_the_host()
            type(cls.through).all_gather_single = type(cls.through)._allgather_base = allgather
            group.barrier()

    @classmethod
    def tearDownClass(cls):
        torch.distributed.destroy_process_group()

    def test_steps(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"broadcast_buffers": False}):
            with self.subTest(options):
                alone = Normalised().double()
                module = nn.SyncBatchNorm.convert_sync_batchnorm(Normalised().double(), self.through).to(DEVICE)
                model = DistributedDataParallel(module, device_ids=[0], **options)
                optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (alone, module)]
                made = torch.Generator().manual_seed(5)
                for _ in range(STEPS):
                    x = torch.randn(PART * self.world, 3, 5, 5, generator=made, dtype=torch.float64)
                    mine = x[self.rank * PART:(self.rank + 1) * PART].to(DEVICE)
                    for each, inputs, optimizer in zip((alone, model), (x, mine), optimizers):
                        optimizer.zero_grad()
                        each(inputs).square().mean().backward()
                        optimizer.step()
                for theirs, ours in ((alone.named_parameters(), module.named_parameters()), (alone.named_buffers(), module.named_buffers())):
                    for (name, one), (_, other) in zip(theirs, ours):
                        apart = (one.detach().double() - other.detach().cpu().double()).abs().max().item()
                        self.assertLessEqual(apart, BOUND, name)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
