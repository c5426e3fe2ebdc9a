"""Averages models that ranks train apart for some steps (ddp/averager.h)."""
from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

from . import _ddp
from ._arrays import DtypeLike, dtype_of
from .context import Context


_KINDS = {
    "none": _ddp.DDP_OUTER_NONE,
    "sgd": _ddp.DDP_OUTER_SGD,
    "nesterov": _ddp.DDP_OUTER_NESTEROV,
    "slowmo": _ddp.DDP_OUTER_SLOWMO,
}


class Averager:
    """Averages the parameters every `periods` steps; with several periods, the i-th over group_sizes[i] ranks."""

    def __init__(self, context: Context, periods: Union[int, Sequence[int]],
                 group_sizes: Optional[Sequence[int]] = None, warmup_steps: int = 0):
        context._require_values("Averager")
        every = [periods] if isinstance(periods, int) else list(periods)
        sizes = None if group_sizes is None else list(group_sizes)
        self._handle = _ddp.ddp_averager_create(context, (every, sizes), warmup_steps)
        self._context = context
        self._handle.keep(context._handle)

    def step(self) -> int:
        """Counts a step, and averages if it is due. Returns over how many ranks it averaged; 0 if it did not."""
        averaged: int = self._call(_ddp.ddp_averager_step)
        return averaged

    @property
    def steps(self) -> int:
        """The number of counted steps; set it from a checkpoint."""
        return _ddp.ddp_averager_get_step(self._handle)

    @steps.setter
    def steps(self, value: int) -> None:
        _ddp.ddp_averager_set_step(self._handle, value)

    def set_outer(self, kind: str = "nesterov", learning_rate: float = 0.7, momentum: float = 0.9,
                  inner_learning_rate: float = 0.0, *, fragments: int = 1, delay: int = 0, alpha: float = 0.0,
                  sent_dtype: Optional[DtypeLike] = None) -> None:
        """An outer optimizer, which steps after each average over all ranks: "nesterov" (DiLoCo), "slowmo", "sgd", or
        "none". Call it again with the same kind to change the rates.

        fragments, delay, alpha: Streaming DiLoCo. Fragments of the model take turns; each is mixed in `delay` steps
        after it left, with alpha as the weight of this rank's own values. sent_dtype "bf16" or "u8": outer gradients travel as
        bf16, or in 8 bits, as blocks of int8."""
        if kind not in _KINDS:
            raise ValueError(f"kind: {kind!r} is none of {', '.join(_KINDS)}")
        options = _ddp.ddp_outer_options()
        options.kind = _KINDS[kind]
        options.learning_rate = learning_rate
        options.momentum = momentum
        options.inner_learning_rate = inner_learning_rate
        options.fragments = fragments
        options.delay = delay
        options.alpha = alpha
        options.sent_dtype = 0 if sent_dtype is None else dtype_of(sent_dtype)
        self._call(_ddp.ddp_averager_set_outer, options)

    def set_fragments(self, fragment_of: Sequence[int]) -> None:
        """The fragment of each parameter, in the order of registration; without it runs of parameters are fragments."""
        self._call(_ddp.ddp_averager_set_fragments, list(fragment_of))

    def go_back(self) -> None:
        """Takes the model back to its last outer step: every rank has the outer parameters."""
        self._call(_ddp.ddp_averager_go_back)

    def state(self) -> bytes:
        """The number of counted steps and the state of the outer optimizer, in the safetensors format; the same on every
        rank. Waits for a fragment on its way."""
        saved: bytes = self._call(_ddp.ddp_averager_state_save)
        return saved

    def load_state(self, state: bytes) -> None:
        """Loads a saved state. Set the outer optimizer first."""
        self._call(_ddp.ddp_averager_state_load, state)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._handle.call_with([self._context], function, (self._handle, *arguments))

    def close(self) -> None:
        """Frees it."""
        self._handle.close()
