"""Votes: a few bits of each rank that travel with a step (ddp/vote.h)."""
import enum
from typing import NamedTuple

from . import _ddp
from ._context_state import ContextState


class Vote(enum.IntFlag):
    """Bits of a vote. Those from USER on belong to the program: Vote.USER << 3. libddp acts on none of them."""
    #: End the training after this step.
    STOP = _ddp.DDP_VOTE_STOP
    #: Write a checkpoint after this step.
    CHECKPOINT = _ddp.DDP_VOTE_CHECKPOINT
    #: Do not apply this step's gradients.
    SKIP = _ddp.DDP_VOTE_SKIP
    #: A loss was not finite.
    NONFINITE = _ddp.DDP_VOTE_NONFINITE
    USER = _ddp.DDP_VOTE_USER


class Votes(NamedTuple):
    """any: bits that at least one rank has cast. all: bits that every rank has cast. level: the greatest; 0 if there was none."""
    any: Vote
    all: Vote
    level: int


class VoteMethods(ContextState):
    """Part of Context, for contexts with votes=True."""

    def vote(self, bits: int = 0, *, level: int = 0) -> None:
        """Casts votes of this rank, on any thread and at any time, also in a handler of signal.signal. They count in one step, the same
        on all ranks: the first synced one whose last gradient comes after the call. Of level, from 0 to 32, the greatest counts."""
        _ddp.ddp_step_vote(self._handle, bits)
        if level:
            _ddp.ddp_step_vote_level(self._handle, level)

    def votes(self) -> Votes:
        """The votes of the last step, after finalize; the same on every rank. There are none after an unsynced step."""
        any_rank, all_ranks, level = _ddp.ddp_step_votes(self._handle)
        return Votes(Vote(any_rank), Vote(all_ranks), level)
