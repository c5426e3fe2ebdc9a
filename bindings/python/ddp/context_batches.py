"""Each rank's share of a global batch, by the speed of the ranks (ddp/batch_share.h)."""
from . import _ddp
from ._context_state import ContextState


class BatchMethods(ContextState):
    """Part of Context, for contexts with reduction="weighted_mean"."""

    def share_batch(self, samples: int, multiple: int = 1, most: int = 0) -> None:
        """Before commit: each step has a global batch of so many samples, of which a fast rank takes more than a slow one. Each share
        is a multiple of `multiple`. most: the samples that fit this rank's memory; 0: no bound."""
        _ddp.ddp_share_batch(self._handle, samples, multiple, most)

    def batch_share(self) -> range:
        """This rank's samples of the global batch, in the step that has begun or, between steps, in the next one. Give their number to
        set_weight before each step_begin."""
        return range(*_ddp.ddp_batch_share(self._handle))

    def batch_time(self, seconds: float) -> None:
        """The time that this rank itself has computed in the last step, instead of what libddp measures between step_begin and
        finalize. With parameters on a device call it after each step."""
        _ddp.ddp_batch_time(self._handle, round(seconds * 1e9))
