"""Parameters, and what all parts of a context share.

context.py is made of context_devices.py, context_hooks.py and context_shards.py. They and bucket.py import this file, and none of them imports
context.py.
"""
from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Protocol, Tuple

from . import _ddp
from ._ddp import Memory
from ._errors import InvalidStateError


class _Owner(Protocol):
    """The calls of a parameter on its context."""

    grad_ready: Callable[[int], None]

    def grad_view(self, param: int) -> Memory: ...
    def put(self, param: int, grad: Any) -> None: ...


class Parameter(int):
    """A parameter: its index, which is what methods take, and what was registered under it."""

    name: str
    shape: Tuple[int, ...]
    dtype: int
    grad_dtype: int
    device: str
    data: Any
    grad: Any
    _context_ref: "weakref.ref[_Owner]"

    @property
    def _context(self) -> _Owner:
        context = self._context_ref()
        if context is None:
            raise InvalidStateError(f"the context of {self.name!r} is gone")
        return context

    def view(self) -> Memory:
        """Context.grad_view of it."""
        return self._context.grad_view(self)

    def ready(self, grad: Any = None) -> None:
        """Context.put or, without an array, Context.grad_ready of it."""
        if grad is None:
            self._context.grad_ready(self)
        else:
            self._context.put(self, grad)

    def __repr__(self) -> str:
        return f"<ddp.Parameter {int(self)} {self.name!r}>"


class ContextState:
    """Part of Context: what its other parts share."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        #: What was registered, by index.
        self.parameters: List[Parameter] = []
        self._buffers: List[Memory] = []
        self._buffer_arrays: List[Any] = []  # whose memory that is
        self._held: Tuple[int, Any] = (-1, None)  # the layout of a generation, for arrays over it
        self._results: Dict[int, Memory] = {}     # of Bucket.set_buffer
        self._in_place: List[Memory] = []  # gradients that are their own views
        self._streams: Dict[Tuple[int, int], Any] = {}  # held while they may be used
        # The functions that the C library calls know the context weakly, so that a hook that refers to it makes a
        # circle that the garbage collector sees.
        self._callbacks: Dict[str, Callable[..., Any]] = {}

    def _require_values(self, what: str) -> None:
        """Refuses `what`, which uses values of parameters, where the context has none."""

    def _end_step(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls what ends a step. Operations of a step that failed may go on for a while, so the arrays of a hook's works stay."""
        well = False
        try:
            function(self._handle, *arguments)
            well = True
        finally:
            self._handle.end_step(well)

    def forget_layout(self) -> None:
        """Arrays over views that nobody has any more keep no memory."""
        self._held = (-1, None)

    def _layout(self) -> Any:
        generation = _ddp.ddp_layout_generation(self._handle)
        if self._held[0] != generation:
            self._held = (generation, _ddp.ddp_layout_hold(self._handle))
            self._held[1].keep(tuple(self._in_place))
        return self._held[1]
