"""torch.distributed.algorithms.Join over ddp.torch: ranks without more inputs follow the steps of the others."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import dataclasses

import torch
from torch import distributed

from ._torch_module import send

if distributed.is_available():
    from torch.distributed.algorithms.join import Join, JoinHook, _JoinConfig
    NO_JOIN = _JoinConfig.construct_disabled_join_config()
else:
    NO_JOIN, JoinHook = None, object


@dataclasses.dataclass
class Present:
    """The ranks that still have inputs, in one forward pass."""

    root: int = 0  # whose buffers count: the highest, as in PyTorch
    count: int = 0  # 0: all
    synced: bool = True


def _meet(parallel, with_inputs, synced):
    group = parallel.process_group
    told = torch.empty(2 * group.world_size, dtype=torch.int64)
    group.allgather(told, torch.tensor([with_inputs, synced], dtype=torch.int64))
    present = [rank for rank in range(group.world_size) if told[2 * rank]]
    return Present(max(present, default=0), len(present), bool(told[1::2].any()))


def forward_begins(parallel):
    """Tells the joined ranks, where there is a Join, what they are to follow."""
    config = parallel._join_config
    if config is None or not config.enable:
        return Present()
    Join.notify_join_context(parallel)
    return _meet(parallel, True, parallel.require_backward_grad_sync and torch.is_grad_enabled())


class Joined(JoinHook):
    """The steps of a rank without more inputs."""

    def __init__(self, parallel, divide_by_initial_world_size):
        self._parallel = parallel
        parallel._divide_by_present = not divide_by_initial_world_size

    def main_hook(self):
        """Follows one forward and backward pass."""
        parallel = self._parallel
        present = _meet(parallel, False, False)
        if parallel.will_sync_module_buffers():
            parallel._send_buffers(present.root)
        parallel.require_forward_param_sync = present.synced
        if present.synced:
            parallel._steps.follow()

    def post_hook(self, is_last_joiner):
        """The last rank's parameters, and its buffers if forward passes send them, go to all."""
        parallel = self._parallel
        present = _meet(parallel, is_last_joiner, False)
        named = [*zip(parallel._steps.names, parallel._steps.tensors)]
        if parallel.forward_sync_buffers:
            named += [(name, tensor) for _, _, name, tensor in parallel._steps.buffers_to_send()]
        for tensor, sent in send(parallel.process_group, present.root, named):
            tensor.data.copy_(sent)
