"""The owners of parameters, as programs name them (ddp/shard.h)."""
from __future__ import annotations

from typing import Any, Callable, Tuple


def owner_function(what: str, owner: Any) -> Callable[[str, Any], Tuple[str, float]]:
    """An owner, or a function that chooses one, as a function of a name and an array or tensor that gives an owner and its cost. Errors
    name `what`."""
    if not (isinstance(owner, str) or callable(owner)):
        raise TypeError(f"{what}: an owner (\"elements\", \"whole\", \"replicated\") or a function of a parameter's name and the parameter "
                        f"that returns one is expected, not {owner!r}")

    def found(name: str, array: Any) -> Tuple[str, float]:
        chosen = owner(name, array) if callable(owner) else owner
        kind, cost = chosen if isinstance(chosen, tuple) else (chosen, 0)
        return kind, cost

    return found
