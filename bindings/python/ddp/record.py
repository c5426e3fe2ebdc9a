"""What the program adds to the record of this process (ddp/record.h): marks, and how much work there is."""
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
