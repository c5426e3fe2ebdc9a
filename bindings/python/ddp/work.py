"""Work: an operation under way, to wait for or to await."""
from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any, Callable, Generator, List, Optional

from . import _ddp
from ._arrays import milliseconds
from ._errors import InvalidStateError

# Handles of operations that nobody holds any more but that may still use arrays: those stay alive until the operation has
# ended, which the next collective looks for.
_unfinished: List[Any] = []


def sweep() -> None:
    """Lets go of the arrays of forgotten operations that have ended."""
    for handle in list(_unfinished):
        try:
            done = _ddp.ddp_work_test(handle)
        except Exception:  # pylint: disable=broad-except
            done = True  # ended badly, or closed: ended
        if done and handle in _unfinished:
            _unfinished.remove(handle)


def name_of(function: Any) -> str:
    """How messages call a function of the program's: 'halved' (train.py, line 12)."""
    name = repr(getattr(function, "__qualname__", type(function).__qualname__))
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f"{name} ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})" if code else name


def checked_work(what: str, function: Any, result: Any, instead: str) -> Optional["Work"]:
    """The result of a function that may return a work, or nothing."""
    if result is None:
        return None
    if not isinstance(result, Work):
        kind = type(result)
        raise TypeError(f"the {what} {name_of(function)} returned neither None nor a ddp.Work, but a "
                        f"{kind.__module__}.{kind.__qualname__}: {instead}")
    if not result._handle.open:
        raise InvalidStateError(f"the {what} {name_of(function)} returned a Work that libddp has taken over before, or that is "
                                f"closed: each Work can be returned once; {instead}")
    return result


def checked_nothing(what: str, function: Any, result: Any) -> None:
    """The result of a function that must have finished when it returns: nobody would wait for a Work that it returned."""
    if isinstance(result, Work) or inspect.isawaitable(result):
        kind = type(result)
        raise TypeError(f"the {what} {name_of(function)} returned a {kind.__module__}.{kind.__qualname__}, which libddp does not "
                        "wait for: finish within the call (without async_op=True), and return None")


class Work:
    """An operation under way. It keeps its arrays alive. Forgetting it does not cancel it."""

    def __init__(self, timeout: Optional[float] = None):
        """A work that the program finishes itself, with complete()."""
        self._handle = _ddp.ddp_work_create(milliseconds(timeout), True)
        self._over = False

    @classmethod
    def _of(cls, handle: _ddp.Handle, *kept: Any) -> "Work":
        work = cls.__new__(cls)
        work._handle = handle
        work._over = False
        for each in kept:
            handle.keep(each)
        return work

    def done(self) -> bool:
        """Whether the operation has ended. Raises its error if it failed."""
        self._over = bool(_ddp.ddp_work_test(self._handle))
        return self._over

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits for the end (seconds; None: as long as the group's timeout allows). Raises its error if it failed."""
        _ddp.ddp_work_wait(self._handle, milliseconds(timeout))
        self._over = True

    def __await__(self) -> Generator[Any, None, None]:
        """Waits in a thread of the event loop, so that the loop keeps running."""
        yield from asyncio.get_running_loop().run_in_executor(None, self.wait).__await__()

    def then(self, function: Callable[[], Optional["Work"]]) -> "Work":
        """Calls function() after this work has ended without error, on a thread inside a libddp call. If it returns a
        work, the result ends with that work. The result raises an exception of function()."""
        if not callable(function):
            raise TypeError(f"a function is expected, not {type(function).__name__}")

        def call() -> Optional["Work"]:
            return checked_work("continuation", function, function(),
                                "return None, or a Work with which the result is to end")

        return Work._of(_ddp.ddp_work_then(self._handle, call, 0), self._handle)

    def complete(self, error: Optional[str] = None) -> None:
        """Finishes a work of Work(): well, or badly with a message."""
        _ddp.ddp_work_complete(self._handle, _ddp.DDP_ERROR_CALLBACK if error else _ddp.DDP_OK, error)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.open and not self._over:
            _unfinished.append(handle)
