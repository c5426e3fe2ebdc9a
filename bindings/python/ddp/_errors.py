"""libddp's statuses as exceptions."""
from __future__ import annotations

import builtins
from typing import Any, Optional, Tuple

from . import _ddp
from ._words import in_python


class Error(Exception):
    """An error of libddp: a sentence, and the facts that it names.

    status: the DDP_ERROR_* value. rank: which rank caused it. param, bucket: what it is about, by index. step: in which
    step. Those that are not known are None.
    """

    status: int = _ddp.DDP_ERROR_INTERNAL

    def __init__(self, message: str, status: Optional[int] = None, rank: int = -1, param: int = -1, bucket: int = -1,
                 step: int = -1):
        super().__init__(message)
        if status is not None:
            self.status = status
        self.rank = rank if rank >= 0 else None
        self.param = param if param >= 0 else None
        self.bucket = bucket if bucket >= 0 else None
        self.step = step if step >= 0 else None

    def __reduce__(self) -> Tuple[Any, ...]:
        known = (-1 if value is None else value for value in (self.rank, self.param, self.bucket, self.step))
        return type(self), (str(self), self.status, *known)


class InvalidArgumentError(Error, ValueError):
    """An argument is out of range, or of the wrong type."""


class InvalidStateError(Error, RuntimeError):
    """The call is not allowed now; the message says when it is."""


class NotFoundError(Error, LookupError):
    """No such backend or module, or no launcher."""


class AlreadyExistsError(Error):
    """The name or the rank is taken."""


class UnsupportedError(Error, NotImplementedError):
    """Understood, but this build, backend or version cannot do it."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed."""


class TimeoutError(Error, builtins.TimeoutError):  # pylint: disable=redefined-builtin
    """The stated time passed; the message names the ranks that did not come."""


class UnavailableError(Error, ConnectionError):
    """The store or a peer cannot be reached."""


class PermissionDeniedError(Error, PermissionError):
    """The job secret is wrong or missing, or the system refused a resource."""


class RankFailedError(Error):
    """A rank died or left; `rank` says which."""


class MismatchError(Error):
    """Ranks disagree: about parameters, the plan, or the order or size of a collective."""


class AbortedError(Error):
    """Group.abort or Context.abort was called."""


class MissingGradientError(Error):
    """A gradient never became ready; `param` says which."""


class CallbackError(Error):
    """A hook or continuation failed without a status of its own."""


class IOError(Error, OSError):  # pylint: disable=redefined-builtin
    """A file or socket operation failed."""


class LimitError(Error, ValueError):
    """A documented limit was exceeded."""


class InternalError(Error):
    """A defect in libddp: please report the message."""


class UnevenInputsError(Error, RuntimeError):
    """A rank has no more inputs, and the context was told to stop then."""


class InterruptedError(Error, builtins.InterruptedError):  # pylint: disable=redefined-builtin
    """The program of a rank ended its wait, by Ctrl-C for example; `rank` says which. That rank raises
    KeyboardInterrupt, or what the signal's handler raised, with this error as its __context__."""


class NonfiniteError(Error):
    """A gradient, or a result, holds NaN or infinity. With skip_nonfinite all ranks have skipped the step, and the
    context goes on."""


_BY_STATUS = {
    _ddp.DDP_ERROR_INVALID_ARGUMENT: InvalidArgumentError,
    _ddp.DDP_ERROR_INVALID_STATE: InvalidStateError,
    _ddp.DDP_ERROR_NOT_FOUND: NotFoundError,
    _ddp.DDP_ERROR_ALREADY_EXISTS: AlreadyExistsError,
    _ddp.DDP_ERROR_UNSUPPORTED: UnsupportedError,
    _ddp.DDP_ERROR_OUT_OF_MEMORY: OutOfMemoryError,
    _ddp.DDP_ERROR_TIMEOUT: TimeoutError,
    _ddp.DDP_ERROR_UNAVAILABLE: UnavailableError,
    _ddp.DDP_ERROR_PERMISSION_DENIED: PermissionDeniedError,
    _ddp.DDP_ERROR_RANK_FAILED: RankFailedError,
    _ddp.DDP_ERROR_MISMATCH: MismatchError,
    _ddp.DDP_ERROR_ABORTED: AbortedError,
    _ddp.DDP_ERROR_MISSING_GRADIENT: MissingGradientError,
    _ddp.DDP_ERROR_CALLBACK: CallbackError,
    _ddp.DDP_ERROR_IO: IOError,
    _ddp.DDP_ERROR_LIMIT: LimitError,
    _ddp.DDP_ERROR_INTERNAL: InternalError,
    _ddp.DDP_ERROR_UNEVEN_INPUTS: UnevenInputsError,
    _ddp.DDP_ERROR_INTERRUPTED: InterruptedError,
    _ddp.DDP_ERROR_NONFINITE: NonfiniteError,
}
for _status, _class in _BY_STATUS.items():
    _class.status = _status
for _class in (Error, *_BY_STATUS.values()):
    _class.__module__ = "ddp"  # tracebacks show the name that a program writes


def _make(status: int, message: str, rank: int, param: int, bucket: int, step: int) -> Error:
    return _BY_STATUS.get(status, Error)(in_python(message), status, rank, param, bucket, step)


_ddp.set_error_factory(_make)
