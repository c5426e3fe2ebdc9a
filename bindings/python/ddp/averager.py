"""Averages models that ranks train apart for some steps (ddp/averager.h)."""
from __future__ import annotations

from typing import Optional, Sequence, Union

from . import _ddp
from .context import Context


class Averager:
    """Averages the parameters every `periods` steps; with several periods, the i-th over group_sizes[i] ranks."""

    def __init__(self, context: Context, periods: Union[int, Sequence[int]],
                 group_sizes: Optional[Sequence[int]] = None, warmup_steps: int = 0):
        every = [periods] if isinstance(periods, int) else list(periods)
        sizes = None if group_sizes is None else list(group_sizes)
        self._handle = _ddp.ddp_averager_create(context, (every, sizes), warmup_steps)
        self._context = context
        self._handle.keep(context._handle)

    def step(self) -> int:
        """Counts a step, and averages if it is due. Returns over how many ranks it averaged; 0 if it did not."""
        return _ddp.ddp_averager_step(self._handle)

    @property
    def steps(self) -> int:
        """The number of counted steps; set it from a checkpoint."""
        return _ddp.ddp_averager_get_step(self._handle)

    @steps.setter
    def steps(self, value: int) -> None:
        _ddp.ddp_averager_set_step(self._handle, value)

    def close(self) -> None:
        """Frees it."""
        self._handle.close()
