"""Which samples of a data set each rank takes (torch.utils.data.DistributedSampler, without a framework)."""
from __future__ import annotations

import random
from typing import Iterator, List, Optional

from . import _ddp
from .group import Group


def shard_range(count: int, rank: int, world_size: int) -> range:
    """The share of a rank of the samples 0 to count - 1. Shares lie in the order of ranks, differ by at most one sample, and together are
    all samples."""
    begin, end = _ddp.ddp_shard_range(count, rank, world_size)
    return range(begin, end)


def _order(length: int, shuffle: bool, seed: int, epoch: int) -> List[int]:
    order = list(range(length))
    if shuffle:
        random.Random(f"{seed} {epoch}").shuffle(order)
    return order


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
        order = _order(self.length, self.shuffle, self.seed, self.epoch)
        for turn in range(len(self)):
            yield order[(turn * self.world_size + self.rank) % self.length]


class ElasticSampler:
    """The indices of one rank's samples in each step of an elastic job, in a new order in each epoch.

        sampler = ddp.ElasticSampler(len(images), 256)
        mine = sampler.batch(now.step, now.rank, now.world_size)

    length: the number of samples. global_batch: how many all ranks take together in a step; the last step of an epoch takes what is left.
    The samples of a step depend on its number and on the seed alone. So each sample comes once in an epoch, although ranks come and go,
    and a step that is done again has the same samples. seed must be the same on every rank.

    Ranks may have unequal shares. For the mean over the global batch use reduction="weighted_mean" and ctx.set_weight(len(mine)).
    """

    def __init__(self, length: int, global_batch: int, *, shuffle: bool = True, seed: int = 0):
        if length < 1 or global_batch < 1:
            raise ValueError(f"length and global_batch: they must be at least 1, not {length} and {global_batch}")
        self.length, self.global_batch, self.shuffle, self.seed = length, global_batch, shuffle, seed
        self._epoch, self._epoch_order = -1, [0]

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.length // self.global_batch)

    def size(self, step: int) -> int:
        """How many samples all ranks take together."""
        return min(self.global_batch, self.length - self._first(step))

    def batch(self, step: int, rank: int, world_size: int) -> List[int]:
        """The samples of one rank. Empty if there are more ranks than samples in the step."""
        epoch, first, share = step // self.steps_per_epoch, self._first(step), shard_range(self.size(step), rank, world_size)
        if epoch != self._epoch:
            self._epoch, self._epoch_order = epoch, _order(self.length, self.shuffle, self.seed, epoch)
        return self._epoch_order[first + share.start:first + share.stop]

    def _first(self, step: int) -> int:
        if step < 0:
            raise ValueError(f"step: it must be at least 0, not {step}")
        return step % self.steps_per_epoch * self.global_batch
