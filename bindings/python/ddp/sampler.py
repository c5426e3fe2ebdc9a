"""Which samples of a data set each rank takes (torch.utils.data.DistributedSampler, without a framework)."""
from __future__ import annotations

import random
from typing import Iterator, Optional

from .group import Group


class DistributedSampler:
    """The indices of one rank's samples, in a new order in each epoch.

        sampler = ddp.DistributedSampler(len(images), group)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for index in sampler: ...

    length: the number of samples. The ranks take turns in the shuffled order. seed, the same on every rank, decides the order with
    the epoch. ends says what happens where the number of samples is no multiple of the number of ranks:

      "pad"     samples from the beginning of the order come twice, so that all ranks have equally many. As PyTorch's.
      "drop"    the last samples of the order are left out, so that all ranks have equally many. As PyTorch's with drop_last.
      "keep"    each sample comes once. The first ranks have one sample more: use it with join, or with a weighted mean.
    """

    def __init__(self, length: int, group: Optional[Group] = None, *, rank: Optional[int] = None,
                 world_size: Optional[int] = None, shuffle: bool = True, seed: int = 0, ends: str = "pad"):
        if (group is None) == (rank is None or world_size is None):
            raise ValueError("say which part it is: with a group, or with rank and world_size")
        if group is not None:
            rank, world_size = group.rank, group.world_size
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise ValueError(f"rank: it must be at least 0 and below world_size, {world_size}, not {rank}")
        if length < 0:
            raise ValueError(f"length: it must be at least 0, not {length}")
        if ends not in ("pad", "drop", "keep"):
            raise ValueError(f"ends: it must be 'pad', 'drop' or 'keep', not {ends!r}")
        self.length, self.rank, self.world_size = length, rank, world_size
        self.shuffle, self.seed, self.ends, self.epoch = shuffle, seed, ends, 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order. Call it before each epoch, on every rank with the same number."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.ends == "drop":
            return self.length // self.world_size
        if self.ends == "pad":
            return -(-self.length // self.world_size)
        return (self.length - self.rank + self.world_size - 1) // self.world_size

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        if self.shuffle:
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        for turn in range(len(self)):
            yield order[(turn * self.world_size + self.rank) % self.length]
