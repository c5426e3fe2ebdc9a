"""A collective that a program has asked for by name, and its description for other ranks."""
from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._numbers import Array, ReduceOp
from .exceptions import HorovodInternalError

Shape = Tuple[int, ...]


class Description(NamedTuple):
    """The facts of a request that other ranks need. A grouped request has several tensors."""

    kind: str  # allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join, add_process_set or remove_process_set
    name: str
    dtypes: Tuple[str, ...] = ()
    shapes: Tuple[Shape, ...] = ()
    op: int = -1
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: Tuple[int, ...] = ()  # alltoall: rows for each rank
    ranks: Tuple[int, ...] = ()  # add_process_set, remove_process_set

    @property
    def key(self) -> str:
        """The identity of the request among all that wait."""
        return f"{self.kind}.{self.name}"

    def encoded(self) -> str:
        """As text that decoded() reads."""
        return json.dumps(self, separators=(",", ":"))


def decoded(text: str) -> Description:
    """The description of encoded()."""
    kind, name, dtypes, shapes, op, root, prescale, postscale, splits, ranks = json.loads(text)
    return Description(kind, name, tuple(dtypes), tuple(map(tuple, shapes)), op, root, prescale, postscale, tuple(splits), tuple(ranks))


class Request:
    """A collective of this rank: its tensors, and its result when it is done."""

    def __init__(self, description: Description, inputs: Sequence[Array] = (), outputs: Optional[Sequence[Array]] = None):
        self.description = description
        self.text = description.encoded()
        self.inputs = list(inputs)
        self.outputs = None if outputs is None else list(outputs)  # None: new arrays
        self.results: List[Array] = []
        self.value: Any = None  # a result that is not an array
        self._error: Optional[str] = None
        self._ended = threading.Event()

    def finish(self, error: Optional[str] = None) -> None:
        """It is over."""
        self._error = error
        self._ended.set()

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Waits for the end, and raises its error."""
        self._ended.wait()
        if self._error is not None:
            raise HorovodInternalError(self._error)


# DISAGREEMENT: a sentence that names the tensor, the ranks and their values; None if all is well.

def _differing(key: str, what: str, values: Dict[int, Any]) -> Optional[str]:
    by_value: Dict[Any, List[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    if len(by_value) == 1:
        return None
    parts = [f"{named(ranks, 'has', 'have')} {value}" for value, ranks in by_value.items()]
    return f"{key}: ranks differ in {what}: {'; '.join(parts)}"


def named(ranks: Sequence[int], one: str, several: str) -> str:
    """Ranks as the subject of a sentence, with its verb."""
    return f"rank {ranks[0]} {one}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} {several}"


def _shown(shapes: Sequence[Any]) -> Any:
    return shapes[0] if len(shapes) == 1 else tuple(shapes)


_COMPARED: Tuple[Tuple[str, Sequence[str], Callable[[Description], Any]], ...] = (
    ("the number of tensors", (), lambda one: len(one.shapes)),
    ("the type", (), lambda one: one.dtypes[0] if len(one.dtypes) == 1 else one.dtypes),
    ("the shape", ("allreduce", "broadcast", "reducescatter"), lambda one: _shown(one.shapes)),
    ("the number of dimensions", ("allgather", "alltoall"), lambda one: _shown([(len(shape),) for shape in one.shapes])),
    ("the shape without the first dimension", ("allgather", "alltoall"), lambda one: _shown([shape[1:] for shape in one.shapes])),
    ("the operation", (), lambda one: ReduceOp(one.op).name if one.op >= 0 else ""),
    ("the root", (), lambda one: one.root),
    ("the prescale factor", (), lambda one: one.prescale),
    ("the postscale factor", (), lambda one: one.postscale),
    ("the process set", (), lambda one: one.ranks),
)


def disagreement(descriptions: Dict[int, Description], joined: Sequence[int], size: int) -> Optional[str]:
    """Why these descriptions of one request, by rank, cannot be run together."""
    first = next(iter(descriptions.values()))
    for what, kinds, fact in _COMPARED:
        if not kinds or first.kind in kinds:
            fault = _differing(first.key, what, {rank: fact(one) for rank, one in descriptions.items()})
            if fault:
                return fault
    if joined and first.kind not in ("barrier", "join"):
        if first.kind != "allreduce" or first.op not in (0, 1):
            return (f"{first.key}: {named(joined, 'has', 'have')} called join(), which only allreduce with Sum or Average allows")
    if first.kind == "alltoall":
        for rank, one in descriptions.items():
            rows = one.shapes[0][0]
            if not one.splits and rows % size:
                return f"{first.key}: rank {rank} has {rows} rows, which cannot be divided among {size} ranks: give splits"
    return None
