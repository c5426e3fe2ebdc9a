"""The methods of a context for hooks (ddp/hook.h, ddp/builtin_hooks.h, ddp/overlap.h)."""
from __future__ import annotations

import weakref
from typing import Any, Callable, List, Optional, Tuple

from . import _ddp
from ._arrays import DtypeLike, dtype_of
from ._context_state import ContextState, Parameter
from ._ddp import Memory
from ._errors import InvalidStateError
from .bucket import Bucket, Hook
from .group import Group
from .work import checked_nothing, checked_work

Function = Callable[..., Any]  # of the program's


class HookMethods(ContextState):
    """Part of Context."""

    def set_hook(self, hook: Optional[Hook]) -> None:
        """hook(group, bucket) leaves in the bucket what gradients become, or returns a Work that ends when the result
        is there. None: back to the default."""
        _ddp.ddp_set_comm_hook(self._handle, self._callback("hook", hook, _lend_bucket, _result_of_hook))

    def use_hook(self, name: str, **options: Any) -> None:
        """A built-in hook: use_hook("powersgd", rank=2, start=100). docs/hooks.md lists them."""
        texts = (f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in options.items())
        _ddp.ddp_use_hook(self._handle, name, ",".join(texts))

    def compress_hook(self, dtype: DtypeLike) -> None:
        """Wraps the installed hook: it receives buckets cast to f16 or bf16."""
        _ddp.ddp_compress_hook(self._handle, dtype_of(dtype))

    def hook_then(self, function: Callable[[Group, Bucket], None]) -> None:
        """Wraps the installed hook: function(group, bucket) is called after it has reduced a bucket."""
        _ddp.ddp_hook_then(self._handle, self._callback(f"then {len(self._callbacks)}", function, _lend_bucket), 0)

    @property
    def hook_name(self) -> str:
        """The installed hook's name: "allreduce", "user", ..."""
        return _ddp.ddp_hook_name(self._handle)

    def hook_state(self) -> bytes:
        """The state of this rank's hook, in the safetensors format."""
        return _ddp.ddp_hook_state_save(self._handle)

    def load_hook_state(self, state: bytes, shared_only: bool = False) -> None:
        """Loads a saved state. shared_only: only what is the same on every rank, for another world size."""
        _ddp.ddp_hook_state_load(self._handle, state, shared_only * _ddp.DDP_HOOK_STATE_SHARED_ONLY)

    def set_buffer_hook(self, hook: Optional[Callable[[Group, List[Memory]], None]]) -> None:
        """hook(group, buffers) runs instead of sending rank 0's buffers. None: back to the default."""
        _ddp.ddp_set_buffer_hook(self._handle, self._callback("buffers", hook, _lend_buffers))

    def set_reduced_callback(self, function: Optional[Callable[[Parameter, bool], None]]) -> None:
        """function(parameter, used) is called when a gradient is final."""
        _ddp.ddp_set_reduced_callback(self._handle, self._callback("reduced", function, _name_parameter))

    def _callback(self, name: str, function: Optional[Function], arguments: Function,
                  checked: Function = checked_nothing) -> Optional[Function]:
        """The function for C to call: function(*arguments(context, ...)), and its result as `checked` has it."""
        if function is None:
            return None
        if not callable(function):
            raise TypeError(f"a function is expected, not {type(function).__name__}")
        self._callbacks[name] = function
        reference = weakref.ref(self)

        what = {"hook": "hook", "buffers": "buffer hook", "reduced": "reduced callback"}.get(name, "function of hook_then")

        def call(*given: Any) -> Any:
            context = reference()
            if context is None:
                raise InvalidStateError("the context of this callback is gone: keep it while its steps run")
            mine = context._callbacks[name]
            return checked(what, mine, mine(*arguments(context, *given)))

        return call


def _result_of_hook(what: str, hook: Function, result: Any) -> Any:
    return checked_work(what, hook, result, "leave the result in the bucket and return None, or return a Work after which it is there")


def _lend_bucket(context: ContextState, group: _ddp.Handle, handle: _ddp.Handle) -> Tuple[Group, Bucket]:
    bucket = Bucket(handle, context)
    return Group._lent(group, bucket.stream), bucket


def _lend_buffers(context: ContextState, group: _ddp.Handle, unused_buffers: Any) -> Tuple[Group, List[Memory]]:
    return Group._lent(group), list(context._buffers)  # in the order of registration, as C gives them


def _name_parameter(context: ContextState, param: int, used: bool) -> Tuple[Parameter, bool]:
    return context.parameters[param], used
