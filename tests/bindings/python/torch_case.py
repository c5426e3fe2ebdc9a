"""For the tests of ddp.torch: a test case on ranks, and a small module. It skips the test where PyTorch is not installed."""
import os
import sys
import tempfile
import unittest

import support

support.need("torch")

import torch  # noqa: E402  (only where it is)
from torch import distributed, nn  # noqa: E402

from ddp.torch import process_group  # noqa: E402

torch.set_num_threads(1)


def need(*version):
    """Goes on with this version of PyTorch or a newer one: in this Python, or in that of DDP_TORCH_PYTHON, which then takes over. Skips the
    test otherwise."""
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= version:
        return
    python = os.environ.pop("DDP_TORCH_PYTHON", None)
    if python:
        os.execv(python, [python, "-B", *sys.argv])
    print(f"skipped: PyTorch {torch.__version__} is older than {'.'.join(map(str, version))}, and DDP_TORCH_PYTHON names no Python with it")
    sys.exit()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


class OnRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = process_group()
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    def inputs(self, rank=None):
        """The inputs of this rank, or of another one."""
        return torch.ones(2, 3) * (1 + (self.rank if rank is None else rank))


class BesidePyTorch(OnRanks):
    """With the ranks in a group of torch.distributed, too."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = torch.tensor(list(tempfile.mktemp().encode().ljust(200)), dtype=torch.uint8)
        cls.group.broadcast(path, 0)
        distributed.init_process_group("gloo", init_method=f"file://{bytes(path.tolist()).decode().strip()}", rank=cls.rank,
                                       world_size=cls.world)

    @classmethod
    def tearDownClass(cls):
        distributed.destroy_process_group()
