"""For the tests of ddp.torch: a test case on ranks, and a small module. It skips the test where PyTorch is not installed."""
import unittest

import support

support.need("torch")

import torch  # noqa: E402  (only where it is)
from torch import nn  # noqa: E402

from ddp.torch import process_group  # noqa: E402

torch.set_num_threads(1)


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
