"""The methods of a context whose ranks update a share of the parameters each (ddp/shard.h)."""
from __future__ import annotations

import weakref
from typing import Any, List

from . import _ddp
from ._arrays import device_of
from ._context_state import ContextState, Parameter
from ._ddp import Memory
from ._errors import InvalidStateError

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
