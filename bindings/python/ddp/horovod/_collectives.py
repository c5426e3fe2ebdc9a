"""Runs requests that all ranks have made over a group of libddp."""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..group import Group
from ._negotiation import Ready
from ._numbers import (OPS, Array, ReduceOp, adasum, bytes_of, from_float64, in_float64, memory, reduced_type, scaled, storage)
from ._requests import Description, Request

# A larger tensor travels alone: copying it twice takes longer than a call.
MOST_FUSED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Part:
    """One tensor of an allreduce. request: None on a rank that has joined, which contributes zeros."""

    description: Description
    index: int
    request: Optional[Request]

    @property
    def count(self) -> int:
        """The number of elements."""
        return int(np.prod(self.description.shapes[self.index], dtype=np.int64))

    @property
    def kind(self) -> Tuple[str, int]:
        """Parts of one kind can be fused: the type and libddp's operation."""
        dtype, op = self.description.dtypes[self.index], ReduceOp(self.description.op)
        return reduced_type(dtype), OPS[_summed(self.description, dtype, op)]

    def load(self) -> Array:
        """The input in the type in which it is reduced, times the factor: the program's array, or a new one."""
        dtype = self.description.dtypes[self.index]
        if self.request is None:
            return np.zeros(self.count, storage(reduced_type(dtype)))
        return _loaded(self.request.inputs[self.index].reshape(-1), dtype, self.description.prescale)

    def output(self) -> Array:
        """The array for the result."""
        if self.request is None:
            return np.empty(self.count, storage(self.description.dtypes[self.index]))
        if self.request.outputs is not None:
            return self.request.outputs[self.index]
        return np.empty(self.description.shapes[self.index], storage(self.description.dtypes[self.index]))

    def store(self, output: Array, reduced: Array, world_size: int) -> None:
        """Writes the result and hands it to the request."""
        flat, dtype = output.reshape(-1), self.description.dtypes[self.index]
        result = _stored(reduced, dtype, self.description, world_size)
        if result.ctypes.data != flat.ctypes.data:
            flat[:] = result
        if self.request is not None:
            self.request.results[self.index] = output


def _summed(description: Description, dtype: str, op: ReduceOp) -> ReduceOp:
    """The operation before the factors. The mean of integers that have factors is computed with them, to round once."""
    factors = description.prescale != 1.0 or description.postscale != 1.0
    return ReduceOp.Sum if op == ReduceOp.Average and factors and storage(dtype).kind in "iu" and dtype != "bfloat16" else op


def _loaded(array: Array, dtype: str, prescale: float) -> Array:
    return scaled(array, dtype, prescale).astype(storage(reduced_type(dtype)), copy=False)


def _stored(reduced: Array, dtype: str, description: Description, world_size: int) -> Array:
    op = ReduceOp(description.op)
    factor = description.postscale / (world_size if _summed(description, dtype, op) != op else 1)
    return scaled(reduced, reduced_type(dtype), factor).astype(storage(dtype), copy=False)


class Collectives:
    """The collectives of one process set. ranks: in the world, in the order of the group."""

    def __init__(self, group: Group, ranks: Sequence[int], fusion_threshold: int):
        self._group = group
        self._ranks = list(ranks)
        self._threshold = fusion_threshold
        self._buffer: Array = np.empty(0, np.uint8)

    def run(self, ready: Sequence[Tuple[Ready, Optional[Request]]]) -> None:
        """Runs all in an order that is the same on each rank; allreduces come last, so that they can be fused."""
        by_kind: Dict[Tuple[str, int], List[_Part]] = {}
        for each, request in ready:
            description = each.description
            if request is not None:
                request.results = [None] * len(description.shapes)
            if description.kind == "allreduce" and description.op == ReduceOp.Adasum:
                for index in range(len(description.shapes)):
                    self._adasum(_Part(description, index, request))
            elif description.kind == "allreduce":
                for index in range(len(description.shapes)):
                    part = _Part(description, index, request)
                    by_kind.setdefault(part.kind, []).append(part)
            elif request is not None and description.kind in _RUN:
                for index in range(len(description.shapes)):
                    request.results[index] = _RUN[description.kind](self, each, request, index)
        for kind, parts in by_kind.items():
            for fused in self._fused(kind[0], parts):
                self._allreduce(kind, fused)

    def _fused(self, dtype: str, parts: Sequence[_Part]) -> List[List[_Part]]:
        size, filled = storage(dtype).itemsize, 0
        fused: List[List[_Part]] = []
        alone: List[List[_Part]] = []
        for part in parts:
            count = part.count * size
            if count > min(MOST_FUSED_BYTES, self._threshold):
                alone.append([part])
                continue
            if not fused or filled + count > self._threshold:
                fused.append([])
                filled = 0
            fused[-1].append(part)
            filled += count
        return fused + alone

    def _allreduce(self, kind: Tuple[str, int], parts: Sequence[_Part]) -> None:
        dtype, op = kind
        outputs = [part.output() for part in parts]
        if len(parts) == 1:
            part, (output,) = parts[0], outputs
            source = part.load()
            if part.request is not None and np.shares_memory(source, part.request.inputs[part.index]):
                # nothing was copied: from the program's array straight into the result
                to = output.reshape(-1) if output.dtype == source.dtype else np.empty_like(source)
                send = None if to.ctypes.data == source.ctypes.data else memory(source, dtype)
            else:
                to, send = source, None
            self._group.allreduce(memory(to, dtype), op, send=send)
            part.store(output, to, len(self._ranks))
            return
        counts = [part.count for part in parts]
        buffer = self._fusion_buffer(sum(counts) * storage(dtype).itemsize).view(storage(dtype))
        places = np.cumsum([0, *counts])
        for part, begin, end in zip(parts, places, places[1:]):
            buffer[begin:end] = part.load()
        self._group.allreduce(memory(buffer, dtype), op)
        for part, output, begin, end in zip(parts, outputs, places, places[1:]):
            part.store(output, buffer[begin:end], len(self._ranks))

    def _fusion_buffer(self, size: int) -> Array:
        if size > self._buffer.size:
            self._buffer = np.asarray(self._group.alloc(max(size, 1 << 16), "u8"))
        return self._buffer[:size]

    def _adasum(self, part: _Part) -> None:
        """Pairs of ranks exchange their vectors and add them, then pairs of pairs, so that all ranks end with the same bits."""
        assert part.request is not None
        dtype = part.description.dtypes[part.index]
        mine = in_float64(part.request.inputs[part.index].reshape(-1), dtype) * part.description.prescale
        world, rank, distance = len(self._ranks), self._group.rank, 1
        while distance < world:
            partner = rank ^ distance
            counts = [mine.size if other == partner else 0 for other in range(world)]
            theirs = np.empty_like(mine)
            self._group.all_to_all(theirs, mine, counts, counts)
            mine = adasum(mine, theirs) if rank < partner else adasum(theirs, mine)
            distance *= 2
        result = from_float64(mine * part.description.postscale, dtype)
        output = part.output()
        output.reshape(-1)[:] = result
        part.request.results[part.index] = output

    def _broadcast(self, ready: Ready, request: Request, index: int) -> Array:
        root = self._ranks.index(ready.description.root)
        if request.outputs is not None:
            output = request.outputs[index]
        elif root == self._group.rank:
            output = request.inputs[index].copy()
        else:
            output = np.empty_like(request.inputs[index])
        self._group.broadcast(bytes_of(output), root)
        return output

    def _allgather(self, ready: Ready, request: Request, index: int) -> Array:
        mine = np.ascontiguousarray(request.inputs[index])
        rows = [ready.descriptions[rank].shapes[index][0] for rank in self._ranks]
        output = np.empty((sum(rows), *mine.shape[1:]), mine.dtype)
        if len(set(rows)) == 1:
            self._group.allgather(bytes_of(output), bytes_of(mine))
            return output
        places = np.cumsum([0, *rows])
        output[places[self._group.rank]:places[self._group.rank + 1]] = mine
        for root, (begin, end) in enumerate(zip(places, places[1:])):
            if end > begin:
                self._group.broadcast(bytes_of(output[begin:end]), root)
        return output

    def _alltoall(self, ready: Ready, request: Request, index: int) -> Array:
        mine, world, rank = np.ascontiguousarray(request.inputs[index]), len(self._ranks), self._group.rank

        def splits_of(description: Description) -> Sequence[int]:
            return description.splits or [description.shapes[index][0] // world] * world

        row = int(np.prod(mine.shape[1:], dtype=np.int64)) * mine.dtype.itemsize
        sent = splits_of(ready.descriptions[self._ranks[rank]])
        received = [splits_of(ready.descriptions[other])[rank] for other in self._ranks]
        output = np.empty((sum(received), *mine.shape[1:]), mine.dtype)
        self._group.all_to_all(bytes_of(output), bytes_of(mine)[:sum(sent) * row], [rows * row for rows in received],
                               [rows * row for rows in sent])
        request.value = received
        return output

    def _reducescatter(self, ready: Ready, request: Request, index: int) -> Array:
        description, world, rank = ready.description, len(self._ranks), self._group.rank
        dtype = description.dtypes[index]
        mine = request.inputs[index]
        rows = [mine.shape[0] // world + (other < mine.shape[0] % world) for other in range(world)]
        places, rest = np.cumsum([0, *rows]), mine.shape[1:]
        reduced = reduced_type(dtype)
        send = np.zeros((world, max(rows), *rest), storage(reduced))  # equal parts
        for other, (begin, end) in enumerate(zip(places, places[1:])):
            send[other, :end - begin] = _loaded(mine[begin:end], dtype, description.prescale)
        recv = np.empty((max(rows), *rest), storage(reduced))
        op = OPS[_summed(description, dtype, ReduceOp(description.op))]
        self._group.reduce_scatter(memory(recv, reduced), memory(send, reduced), op)
        return np.ascontiguousarray(_stored(recv[:rows[rank]], dtype, description, world))


_RUN: Dict[str, Any] = {
    "broadcast": Collectives._broadcast, "allgather": Collectives._allgather, "alltoall": Collectives._alltoall,
    "reducescatter": Collectives._reducescatter,
}  # yapf: disable
