"""Elastic jobs of PyTorch.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))

ddprun starts them with --min-ranks.
"""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

import copy
import math
import random
from typing import Any, Dict, Iterator, List

import torch

from .._calls import broadcast_object
from .._elastic import ObjectState, State, run
from .._job import rank, size
from .functions import broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class ElasticSampler(torch.utils.data.Sampler):
    """The indices of this rank's samples, of those that nobody has processed in this epoch. Some come twice where they do not divide
    evenly. Give it to TorchState, and call record_batch() after each batch."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0):  # pylint: disable=super-init-not-called
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in another order."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed a batch of so many samples each."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> Dict[str, int]:
        """The epoch and the number of processed samples."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Goes on from there."""
        self.epoch, self.processed_num = state["epoch"], state["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the remaining samples among the ranks of now."""
        self.rank, self.num_replicas = rank(), size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num:]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        left: List[int] = self.remaining_indices
        total = self.num_samples * self.num_replicas
        padded = (left * (total // len(left) + 1))[:total] if left else []
        return iter(padded[self.rank::self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class TorchState(ObjectState):
    """Modules, optimizers and samplers, and Python objects, which are attributes of the state."""

    def __init__(self, model: Any = None, optimizer: Any = None, **objects: Any):
        given = {"model": model, "optimizer": optimizer}
        everything = {**{name: value for name, value in given.items() if value is not None}, **objects}
        self._parts = {name: value for name, value in everything.items()
                       if isinstance(value, (torch.nn.Module, torch.optim.Optimizer, ElasticSampler))}
        super().__init__(**{name: value for name, value in everything.items() if name not in self._parts})
        for name, value in self._parts.items():
            setattr(self, name, value)
        self._kept: Dict[str, Any] = {}
        self._keep()

    def _keep(self) -> None:
        self._parts = {name: getattr(self, name) for name in self._parts}  # the program may have set others
        self._kept = {name: copy.deepcopy(value.state_dict()) for name, value in self._parts.items()}

    def save(self) -> None:
        self._keep()
        super().save()

    def restore(self) -> None:
        for name, value in self._parts.items():
            value.load_state_dict(copy.deepcopy(self._kept[name]))
        super().restore()

    def sync(self) -> None:
        self._parts = {name: getattr(self, name) for name in self._parts}
        for value in self._parts.values():
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root_rank=0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_object(value.state_dict()))
        super().sync()
        self._keep()

    def reset(self) -> None:
        for value in self._parts.values():
            if isinstance(value, ElasticSampler):
                value.reset()
