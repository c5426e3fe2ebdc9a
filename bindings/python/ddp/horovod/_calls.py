"""Horovod's collectives over tensors of any framework, which an Adapter turns into arrays of NumPy and back."""
from __future__ import annotations

import itertools
import pickle
import threading
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from ._job import ProcessSet, checked_op, global_process_set, rank, start, start_barrier
from ._numbers import Array, ReduceOp, stored
from ._requests import Request

Finish = Callable[[Request], Any]

_handles: Dict[int, Tuple[Request, Finish]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def handle_of(request: Request, finish: Finish) -> int:
    """A handle for poll() and synchronize(). finish: makes the result for the program."""
    with _lock:
        handle = next(_numbers)
        _handles[handle] = (request, finish)
    return handle


def changed(handle: int, function: Callable[[Any], Any]) -> int:
    """The handle, whose result is then function(result)."""
    with _lock:
        request, finish = _handles[handle]
        _handles[handle] = (request, lambda ended: function(finish(ended)))
    return handle


def poll(handle: int) -> bool:
    """Whether the operation has ended, so that synchronize() does not wait."""
    with _lock:
        known = _handles.get(handle)
    return known is None or known[0].done


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result. Raises HorovodInternalError if it failed. None: the handle was used before."""
    with _lock:
        known = _handles.pop(handle, None)
    if known is None:
        return None
    request, finish = known
    request.wait()
    return finish(request)


def forget_handles() -> None:
    """For shutdown(): their requests have failed."""
    with _lock:
        _handles.clear()


class Adapter(Protocol):
    """Tensors of a framework as arrays."""

    def read(self, tensor: Any) -> Tuple[Array, str]:
        """A contiguous array with the tensor's values, and the name of its type. It may share the tensor's memory."""

    def writable(self, tensor: Any) -> Tuple[Array, str, Callable[[Array], None]]:
        """As read(), for results in place; and the function that takes the result back to the tensor."""

    def make(self, array: Array, dtype: str, like: Any) -> Any:
        """A tensor with the values of a new array, where `like` is."""


class Calls:
    """The collectives of one framework."""

    def __init__(self, adapter: Adapter):
        self._adapter = adapter

    def _start(self, kind: str, tensors: Sequence[Any], in_place: bool, one: bool, name: Optional[str], process_set: ProcessSet,
               **arguments: Any) -> int:
        """one: the result is a tensor, otherwise a list of tensors."""
        if not tensors:
            raise ValueError(f"{kind}: a list of at least one tensor is expected")
        backs: List[Callable[[Array], None]] = []
        arrays, dtypes = [], []
        for tensor in tensors:
            if in_place:
                array, dtype, back = self._adapter.writable(tensor)
                backs.append(back)
            else:
                array, dtype = self._adapter.read(tensor)
            arrays.append(array)
            dtypes.append(dtype)
        kept = list(tensors)

        def finish(request: Request) -> Any:
            if in_place:
                for back, array in zip(backs, request.results):
                    back(array)
                results = kept
            else:
                results = [self._adapter.make(*each) for each in zip(request.results, dtypes, kept)]
            if request.description.kind == "alltoall":
                return results[0], request.value
            return results[0] if one else results

        request = start(kind, name, arrays, dtypes, process_set=process_set, outputs=arrays if in_place else None, **arguments)
        return handle_of(request, finish)

    # ALLREDUCE

    def allreduce_async(self, tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: ProcessSet = global_process_set) -> int:
        """Starts the reduction of a tensor over ranks into a new one. op: Average by default. Ranks need not call in the same order:
        the name says what belongs together. Returns a handle."""
        return self._start("allreduce", [tensor], False, True, name, process_set, op=checked_op(op, average), prescale=prescale_factor,
                           postscale=postscale_factor)

    def allreduce_async_(self, tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
                         prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                         process_set: ProcessSet = global_process_set) -> int:
        """As allreduce_async, in place."""
        return self._start("allreduce", [tensor], True, True, name, process_set, op=checked_op(op, average), prescale=prescale_factor,
                           postscale=postscale_factor)

    def allreduce_(self, tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
                   prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> Any:
        """Reduces a tensor over ranks in place, and returns it."""
        return synchronize(self.allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))

    def grouped_allreduce_async(self, tensors: Sequence[Any], average: Optional[bool] = None, name: Optional[str] = None,
                                op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> int:
        """As allreduce_async, for a list of tensors, which become ready together."""
        return self._start("allreduce", tensors, False, False, name, process_set, op=checked_op(op, average), prescale=prescale_factor,
                           postscale=postscale_factor)

    def grouped_allreduce_async_(self, tensors: Sequence[Any], average: Optional[bool] = None, name: Optional[str] = None,
                                 op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                                 process_set: ProcessSet = global_process_set) -> int:
        """As grouped_allreduce_async, in place."""
        return self._start("allreduce", tensors, True, False, name, process_set, op=checked_op(op, average), prescale=prescale_factor,
                           postscale=postscale_factor)

    def grouped_allreduce_(self, tensors: Sequence[Any], average: Optional[bool] = None, name: Optional[str] = None,
                           op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                           process_set: ProcessSet = global_process_set) -> Any:
        """Reduces a list of tensors over ranks in place, and returns it."""
        return synchronize(self.grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))

    # THE OTHERS

    def allgather_async(self, tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> int:
        """Starts to put the tensors of all ranks one after another along the first dimension, in which they may differ."""
        return self._start("allgather", [tensor], False, True, name, process_set)

    def grouped_allgather_async(self, tensors: Sequence[Any], name: Optional[str] = None,
                                process_set: ProcessSet = global_process_set) -> int:
        """As allgather_async, for a list of tensors."""
        return self._start("allgather", tensors, False, False, name, process_set)

    def broadcast_async(self, tensor: Any, root_rank: int, name: Optional[str] = None,
                        process_set: ProcessSet = global_process_set) -> int:
        """Starts to send the tensor of rank root_rank (in the job) to every rank, into a new one."""
        return self._start("broadcast", [tensor], False, True, name, process_set, root=root_rank)

    def broadcast_async_(self, tensor: Any, root_rank: int, name: Optional[str] = None,
                         process_set: ProcessSet = global_process_set) -> int:
        """As broadcast_async, in place."""
        return self._start("broadcast", [tensor], True, True, name, process_set, root=root_rank)

    def broadcast_(self, tensor: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
        """Overwrites the tensor with that of rank root_rank, and returns it."""
        return synchronize(self.broadcast_async_(tensor, root_rank, name, process_set))

    def alltoall_async(self, tensor: Any, splits: Any = None, name: Optional[str] = None,
                       process_set: ProcessSet = global_process_set) -> int:
        """Starts to send splits[r] rows of the tensor to each rank r, equally many without splits. The result is a pair: the rows
        that came, in the order of ranks, and how many came from each."""
        counts = [] if splits is None else _counts(splits)
        return self._start("alltoall", [tensor], False, True, name, process_set, splits=counts)

    def reducescatter_async(self, tensor: Any, name: Optional[str] = None, op: int = ReduceOp.Average,
                            process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0) -> int:
        """Starts the reduction of a tensor over ranks, of which this rank gets its rows. If rows cannot be divided equally, the
        first ranks get one more."""
        return self._start("reducescatter", [tensor], False, True, name, process_set, op=checked_op(op), prescale=prescale_factor,
                           postscale=postscale_factor)

    def grouped_reducescatter_async(self, tensors: Sequence[Any], name: Optional[str] = None, op: int = ReduceOp.Average,
                                    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                    postscale_factor: float = 1.0) -> int:
        """As reducescatter_async, for a list of tensors."""
        return self._start("reducescatter", tensors, False, False, name, process_set, op=checked_op(op), prescale=prescale_factor,
                           postscale=postscale_factor)


def _counts(splits: Any) -> List[int]:
    listed = np.asarray(splits)
    if listed.dtype.kind not in "iu" or listed.ndim != 1:
        raise ValueError(f"alltoall: splits must be whole numbers in one dimension, not {listed.dtype} of shape {listed.shape}")
    return [int(rows) for rows in listed]


class NumpyAdapter:
    """Arrays of NumPy, and anything that numpy.asarray takes."""

    def read(self, tensor: Any) -> Tuple[Array, str]:
        """See Adapter."""
        return stored(np.ascontiguousarray(tensor).reshape(np.shape(tensor)))

    def writable(self, tensor: Any) -> Tuple[Array, str, Callable[[Array], None]]:
        """See Adapter."""
        if not isinstance(tensor, np.ndarray) or not tensor.flags.c_contiguous or not tensor.flags.writeable:
            raise ValueError("an array of NumPy that is contiguous and writable is expected for a result in place")
        array, dtype = stored(tensor)
        return array, dtype, lambda result: None

    def make(self, array: Array, dtype: str, like: Any) -> Any:
        """See Adapter."""
        return array.view(like.dtype) if dtype == "bfloat16" else array


_numpy = Calls(NumpyAdapter())


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all ranks of the set have called it."""
    synchronize(handle_of(start_barrier(process_set), lambda request: None))


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of rank root_rank, which pickle must take."""
    prefix = f"object.{name}" if name is not None else None
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if rank() == root_rank else np.empty(0, np.uint8)
    length = synchronize(_numpy.broadcast_async(np.array([data.size]), root_rank, prefix and prefix + ".sz", process_set))
    if rank() != root_rank:
        data = np.empty(int(length[0]), np.uint8)
    data = synchronize(_numpy.broadcast_async(data, root_rank, prefix and prefix + ".t", process_set))
    return obj if rank() == root_rank else pickle.loads(data.tobytes())


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks of the set, in their order."""
    prefix = f"object.{name}" if name is not None else None
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    sizes = synchronize(_numpy.allgather_async(np.array([data.size]), prefix and prefix + ".sz", process_set))
    everything = synchronize(_numpy.allgather_async(data, prefix and prefix + ".t", process_set))
    places = np.cumsum([0, *sizes])
    return [pickle.loads(everything[begin:end].tobytes()) for begin, end in zip(places, places[1:])]
