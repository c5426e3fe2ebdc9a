"""The context of an adapter for arrays that a program replaces by new ones in each step."""
from __future__ import annotations

from typing import Any, Tuple

from ._errors import InvalidStateError
from .context import Context
from .group import Group


class GradientContext(Context):
    """A context that has gradients, and of the parameters no more than the first values: the program keeps the others."""

    _needing_values: Tuple[str, ...] = ("verify_interval", "shard")  # options

    def __init__(self, group: Group, **options: Any):
        for option in self._needing_values:
            if options.get(option):
                self._require_values(option)
        super().__init__(group, **options)

    def set_sync(self, sync: bool) -> None:
        if not sync:
            raise InvalidStateError("no_sync: an average that does not communicate is this rank's own, and not in the next one. Add gradients up, "
                                    "and average the sum")
        super().set_sync(sync)

    def _require_values(self, what: str) -> None:
        raise InvalidStateError(
            f"{what}: libddp has the first values of the parameters only, as the program keeps the parameters itself. Use collectives of the "
            "group on them, or a ddp.Context with arrays that the program updates in place")
