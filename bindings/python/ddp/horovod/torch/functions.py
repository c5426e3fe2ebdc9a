"""Parameters, optimizers and objects of one rank to all."""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Union

import torch

from .._calls import allgather_object, broadcast_object
from .._job import ProcessSet, global_process_set, rank
from .mpi_ops import broadcast_async_, synchronize

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Union[Mapping[str, torch.Tensor], Sequence[Any]], root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Overwrites tensors with those of rank root_rank. params: model.state_dict(), or a list of tensors or of pairs of name and
    tensor, such as list(model.named_parameters())."""
    named: List[Any]
    if isinstance(params, Mapping):
        named = sorted(params.items())
    elif isinstance(params, (list, tuple)) or hasattr(params, "__next__"):
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(f"broadcast_parameters: a dict or a list of tensors is expected, not {type(params).__name__}")
    handles = [broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in named if isinstance(tensor, torch.Tensor)]
    for handle in handles:
        synchronize(handle)


class _Placeholder:
    """A tensor in a state that travels without its tensors."""

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


def _taken_apart(state: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        tensors.append(state)
        return _Placeholder(state)
    if isinstance(state, dict):
        return {key: _taken_apart(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_taken_apart(value, tensors) for value in state)
    return state


def _put_together(state: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(state, _Placeholder):
        tensors.append(torch.empty(state.shape, dtype=state.dtype))
        return tensors[-1]
    if isinstance(state, dict):
        return {key: _put_together(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_put_together(value, tensors) for value in state)
    return state


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Gives each rank the state and the options of rank root_rank's optimizer. A rank whose optimizer has made no step yet needs none.
    model: not needed, and taken because Horovod takes it."""
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    tensors: List[torch.Tensor] = []
    is_root = rank() == root_rank
    skeleton = broadcast_object(_taken_apart(optimizer.state_dict(), tensors) if is_root else None, root_rank, process_set=process_set)
    state = None if is_root else _put_together(skeleton, tensors)
    for handle in [broadcast_async_(tensor, root_rank, None, process_set) for tensor in tensors]:
        synchronize(handle)
    if state is not None:
        optimizer.load_state_dict(state)
