"""A job whose ranks come and go (ddp/elastic.h)."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Mapping, Optional

from . import _ddp
from ._arrays import memory_of, milliseconds
from ._ddp import Memory
from .averager import Averager
from .context import Context
from .context_shards import Arrays
from .group import Group, close_at_exit, group_options
from .store import Store


_PLACES = {"neighbour": _ddp.DDP_KEEP_AT_NEIGHBOUR, "checkpoint": _ddp.DDP_KEEP_IN_CHECKPOINT}


@dataclasses.dataclass(frozen=True)
class ElasticStep:
    """The facts of a step from Elastic.begin: ddp_elastic_step."""

    step: int
    roster: int
    rank: int
    world_size: int
    changed: bool
    joined: int
    left: int
    leaving: bool
    fence: int


class Elastic:
    """A job that goes on without ranks that die, and takes in those that come.

    min_world, max_world and settle (in seconds) are those of ddp_elastic_options. Without the first two, ddprun says
    them. The other arguments are Group's. The store must outlive all ranks. Creating it joins nothing yet: that is the
    first begin().
    """

    def __init__(self, init_method: Optional[str] = None, *, backend: Optional[str] = None,
                 backend_options: Optional[str] = None, timeout: Optional[float] = None, name: Optional[str] = None,
                 store: Optional[Store] = None, secret: Optional[str] = None, deterministic: bool = False,
                 match_check: bool = True, insecure: bool = False, min_world: int = 0,
                 max_world: Optional[int] = None, settle: Optional[float] = None):
        group = group_options(init_method, backend=backend, backend_options=backend_options, timeout=timeout, name=name,
                              store=store, secret=secret, deterministic=deterministic, match_check=match_check,
                              insecure=insecure)
        options = _ddp.ddp_elastic_options()
        options.set_group(group)
        options.min_world = min_world
        options.max_world = max_world or 0
        options.settle_ms = milliseconds(settle)
        self._handle = _ddp.ddp_elastic_create(options)
        self._handle.keep(store)
        self._contexts: List[Context] = []
        self._averagers: List[Averager] = []
        close_at_exit(self)

    @property
    def group(self) -> Group:
        """The group of this roster: before the first begin(), this rank alone. It follows the job from roster to roster."""
        return Group._lent(_ddp.ddp_elastic_group(self._handle))

    def add_context(self, context: Context) -> None:
        """A committed context of this job's group, which then moves from roster to roster. It must stay open."""
        context._require_values("add_context")
        _ddp.ddp_elastic_add_context(self._handle, context)
        self._contexts.append(context)

    def add_averager(self, averager: Averager) -> None:
        """An averager with an outer optimizer, of a context that was added: ranks train apart, and come and go after outer steps. It
        must stay open."""
        _ddp.ddp_elastic_add_averager(self._handle, averager._handle)
        self._averagers.append(averager)

    def add_state(self, name: str, state: Any) -> None:
        """Memory that belongs to the state, an optimizer's for example: a writable array, or any writable contiguous buffer."""
        memory = _bytes_of("state", state)
        _ddp.ddp_elastic_add_state(self._handle, name, memory.address, memory.count * _ddp.ddp_dtype_size(memory.dtype))
        self._handle.keep(memory)

    def set_step(self, step: int) -> None:
        """This rank has loaded the state after so many steps, from a checkpoint."""
        _ddp.ddp_elastic_set_step(self._handle, step)

    def begin(self) -> ElasticStep:
        """Begins a step; waits for the next roster if ranks were lost, come or go. Arrays over views may be out of date where
        it says `changed`."""
        told = _ddp.ddp_elastic_step()
        self._call(_ddp.ddp_elastic_begin, told)
        if told.changed:
            for context in self._contexts:
                context._handle.end_step(False)
        return ElasticStep(told.step, told.roster, told.rank, told.world_size, bool(told.changed), told.joined, told.left,
                           bool(told.leaving), told.fence)

    def commit(self) -> None:
        """This rank has applied the step: once after each begin, when every optimizer has run."""
        self._call(_ddp.ddp_elastic_commit)

    def confirm_member(self) -> None:
        """Asks the store whether this rank is a member of the newest roster, and raises if it is not: between writing a checkpoint and
        renaming it. Put `fence` into the file's name, too."""
        self._call(_ddp.ddp_elastic_confirm_member)

    def keep_shards(self, context: Context, arrays: Mapping[str, Arrays], step: int, *, where: str = "neighbour") -> None:
        """On all ranks, for a context with shard=True: keeps the values and `arrays`, the state after `step` steps, to which a change of the
        roster takes the job back. After commit, or after begin where recall_shards has found nothing. By key, such as "m", there is
        a list with an array for each of context.pieces(), or a dict by the names of parameters, of elements that all their owners have.
        where: "neighbour": copies in memory, here and on another rank; "checkpoint": the program has saved it (save_shards)."""
        if where not in _PLACES:
            raise ValueError(f"where: {where!r} is unknown; there are {', '.join(_PLACES)}")
        held = context._name_arrays(arrays, writable=False)
        self._call(_ddp.ddp_elastic_keep_shards, context._handle, step, _PLACES[where])
        del held

    def recall_shards(self, context: Context, arrays: Mapping[str, Arrays]) -> bool:
        """On all ranks, where begin says `changed`: fills the arrays of the new pieces, and all values, from what ranks have kept
        after ElasticStep.step steps. False: nothing was kept in memory, and nothing has changed here."""
        held = context._name_arrays(arrays, writable=True)
        found = self._call(_ddp.ddp_elastic_recall_shards, context._handle)
        del held
        return bool(found)

    def announce_leave(self) -> None:
        """This rank will leave. Go on with steps until begin() says `leaving`."""
        _ddp.ddp_elastic_announce_leave(self._handle)

    def leave(self) -> None:
        """Leaves between two steps. Afterwards the job can only be closed."""
        self._call(_ddp.ddp_elastic_leave)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._handle.call_with([*self._contexts, *self._averagers], function, (self._handle, *arguments))

    def close(self) -> None:
        """Frees it. Without leave() before, the others take this rank for dead, and go on at once."""
        self._handle.close()

    def __enter__(self) -> "Elastic":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _bytes_of(what: str, state: Any) -> Memory:
    """The bytes of a buffer with elements of any type; of anything else, as memory_of takes it."""
    try:
        state = memoryview(state).cast("B")
    except (TypeError, ValueError, NotImplementedError):
        pass
    return memory_of(what, state)
