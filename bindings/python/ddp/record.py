"""The program's own entries in the record of this process (ddp/record.h), and a signal for a rank that the others wait for."""
from __future__ import annotations

import contextlib
from typing import Any

from . import _ddp


class mark(contextlib.ContextDecorator):
    """A span of the program's own in traces: `with ddp.mark("forward"):`, or `@ddp.mark("forward")` before a function. Marks nest."""

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> mark:
        _ddp.ddp_mark_begin(self._name)
        return self

    def __exit__(self, *error: Any) -> None:
        _ddp.ddp_mark_end()


def set_workload(samples: int = 0, steps: int = 0) -> None:
    """Says how many samples this rank takes in a step, and how many steps the run has; 0: unknown. For `ddprun --status`."""
    _ddp.ddp_set_workload(samples, steps)


def set_blame_signal(signal: int) -> None:
    """The signal that this process sends itself when a group breaks with an error that names its rank; 0: none. With
    `faulthandler.register(signal.SIGUSR1)` a rank that hangs then shows where."""
    _ddp.ddp_set_blame_signal(int(signal))
