"""The methods of a context whose ranks update a share of the parameters each (ddp/shard.h)."""
from __future__ import annotations

import os
import weakref
from typing import Any, List, Mapping, Sequence, Union

from . import _ddp
from ._arrays import device_of, memory_of, stream_of
from ._context_state import ContextState, Parameter
from ._ddp import Memory
from ._errors import InvalidStateError
from .optimizer import OptimizerState

_OWNERS = {"elements": _ddp.DDP_OWNER_ELEMENTS, "whole": _ddp.DDP_OWNER_WHOLE,
           "replicated": _ddp.DDP_OWNER_REPLICATED}


class Piece:
    """Elements of a parameter that this rank owns: `count` of them, after `first` others in the order of memory. replicated: all ranks
    own them."""

    param: Parameter
    first: int
    count: int
    replicated: bool

    def __init__(self, context: "ShardMethods", index: int):
        found = _ddp.ddp_piece()
        _ddp.ddp_piece_get(context._handle, index, found)
        self.param = context.parameters[found.param]
        self.first, self.count, self.replicated = found.first, found.count, bool(found.replicated)
        self._value, self._gradient = found.value, found.gradient
        self._generation = _ddp.ddp_layout_generation(context._handle)
        self._context_ref = weakref.ref(context)

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.param.name

    @property
    def value(self) -> Memory:
        """Where the elements are in the registered array: numpy.asarray(piece.value) or torch.from_dlpack(...)."""
        self._context()
        return Memory.at(self._value, self.param.dtype, (self.count,), self.param.data, False, device_of(self.param.device))

    @property
    def gradient(self) -> Memory:
        """Where their mean is after finalize, in the registered array or in a bucket. Take it once: arrays over it stay right as
        long as the pieces do."""
        owner = self._context()._layout() if self.param.grad is None else self.param.grad
        return Memory.at(self._gradient, self.param.grad_dtype, (self.count,), owner, False, device_of(self.param.device))

    def _context(self) -> "ShardMethods":
        context = self._context_ref()
        if context is None or not context._handle.open:
            raise InvalidStateError(f"the context of {self.name!r} is {'gone' if context is None else 'closed'}")
        if _ddp.ddp_layout_generation(context._handle) != self._generation:
            raise InvalidStateError(f"{self.name!r}: this rank has other pieces since set_group. Call pieces() again")
        return context

    def __repr__(self) -> str:
        return f"<ddp.Piece of {self.name!r}: {self.count} elements from {self.first}>"


class ShardMethods(ContextState):
    """Part of Context, for contexts with shard=True."""

    def set_owner(self, param: int, owner: str, *, cost: float = 0) -> None:
        """Before commit, and alike on all ranks. owner: "elements": each rank owns a range of them, as from the beginning;
        "whole": one rank owns the parameter, for optimizers that need whole matrices; "replicated": all ranks own it, for small ones.
        cost: with "whole", of an update, beside the other such parameters; 0: the number of elements."""
        if owner not in _OWNERS:
            raise ValueError(f"owner: {owner!r} is unknown; there are {', '.join(_OWNERS)}")
        _ddp.ddp_set_owner(self._handle, param, _OWNERS[owner], cost)

    def pieces(self) -> List[Piece]:
        """This rank's, in the order of parameters: at most one of each. They stay until set_group."""
        return [Piece(self, index) for index in range(max(0, _ddp.ddp_piece_count(self._handle)))]

    def publish(self) -> None:
        """After the update, on every rank and in each synced step: sends the values of this rank's pieces to the others."""
        _ddp.ddp_publish(self._handle)

    def wait_value(self, param: int) -> None:
        """Waits until the parameter has its new value on this rank."""
        _ddp.ddp_wait_value(self._handle, param)

    def wait_value_on(self, param: int, stream: Any) -> None:
        """wait_value that does not wait for the GPU: what is enqueued on the stream afterwards sees the new value."""
        _ddp.ddp_wait_value_on(self._handle, param, stream_of(stream))

    def save_shards(self, folder: Union[str, "os.PathLike[str]"], arrays: Mapping[str, "Arrays"], *, note: str = "") -> None:
        """On all ranks: saves `arrays` as safetensors in a folder that all ranks see, from which any number of ranks can load. By key,
        such as "m", there is a list with an array for each of pieces(), or a dict of whole parameters by name, alike on all ranks that give them,
        or what Optimizer.state has. {"value": [piece.value for piece in pieces]} are the values. note: text that load_shards gives back, such as the step; alike on
        all ranks. If it fails, the folder holds the save before."""
        held = self._name_arrays(arrays, writable=False)
        _ddp.ddp_shard_save(self._handle, os.fspath(folder), note)
        del held

    def load_shards(self, folder: Union[str, "os.PathLike[str]"], arrays: Mapping[str, "Arrays"]) -> str:
        """On all ranks: fills the arrays from what save_shards has saved, in any world. Returns the note. Values that are loaded
        reach all ranks. One rank gets whole parameters with {key: {name: array}}, while the others pass {}."""
        held = self._name_arrays(arrays, writable=True)
        note: str = _ddp.ddp_shard_load(self._handle, os.fspath(folder))
        del held
        return note

    def _name_arrays(self, arrays: Mapping[str, "Arrays"], writable: bool) -> List[Memory]:
        """For the next call. Returns their memory, to be held until then."""
        named = []
        for key, each in arrays.items():
            if isinstance(each, Mapping):
                by_name = {parameter.name: parameter for parameter in self.parameters}
                for name, array in each.items():
                    if name not in by_name:
                        raise ValueError(f"{key}: {name!r} is not registered")
                    if isinstance(array, OptimizerState):
                        if array.data.device[0] != _ddp.DDP_DEVICE_CPU:
                            raise ValueError(f"{key} of {name}: it is on a device; give a copy on the CPU")
                        named.append((key, array.param, array.first, array.replicated, array.data))
                    else:
                        named.append((key, by_name[name], 0, True, memory_of(f"{key} of {name}", array, writable)))
                continue
            pieces = self.pieces()
            if len(each) != len(pieces):
                raise ValueError(f"{key}: there are {len(each)} arrays, and {len(pieces)} pieces")
            for piece, array in zip(pieces, each):
                memory = memory_of(f"{key} of {piece.name}", array, writable)
                if memory.count != piece.count:
                    raise ValueError(f"{key} of {piece.name}: there are {memory.count} elements, and {piece.count} in the piece")
                named.append((key, piece.param, piece.first, piece.replicated, memory))
        for key, parameter, first, replicated, memory in named:
            _ddp.ddp_shard_array(self._handle, key, parameter, first, memory.count, memory.dtype, memory.address, replicated)
        return [entry[-1] for entry in named]


Arrays = Union[Sequence[Any], Mapping[str, Any]]
